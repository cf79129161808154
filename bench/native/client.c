/* The load client: client PORT REQUEST STREAMS AT_ONCE BYTES ANSWER

   Sends what stands in the file REQUEST on AT_ONCE connections, again and again, until STREAMS
   answers came, each at least BYTES long, status 200. The first answer goes into the file ANSWER,
   to be looked at closely. To stdout go nanoseconds in lines: wall, cpu (its own), first (from the
   request's last byte to the first of the answer's body, one a stream), and latency (from the
   provider's clock in an event to its arrival). */
#include "wire.h"

#define BUFFER (1 << 18)

typedef struct {
    int fd;
    int64_t started;
    size_t sent;
    long length;   /* of the body, -1: chunked */
    size_t head, got;
    int begun;     /* the first byte of the body came */
    char tail[5];  /* of what was read */
    char cut[64];  /* what may be the beginning of a clock */
    size_t cut_length;
    char *kept;
} Connection;

typedef struct {
    int64_t *values;
    size_t count, capacity;
} Series;

static char *request, buffer[BUFFER + 64];
static size_t request_length;
static long to_start, to_end, least;
static Series first, latency;
static const char *answer_path;
static int epoll;

static void note(Series *series, int64_t value) {
    if (series->count == series->capacity) {
        series->capacity = series->capacity ? series->capacity * 2 : 1024;
        series->values = grown(series->values, series->capacity * sizeof value);
    }
    series->values[series->count++] = value;
}

static void show(const char *name, const Series *series) {
    printf("%s", name);
    for (size_t i = 0; i < series->count; i++) printf(" %lld", (long long)series->values[i]);
    printf("\n");
}

static _Noreturn void fail(const char *what, const char *data, size_t length) {
    fprintf(stderr, "%s: %.*s\n", what, (int)(length > 300 ? 300 : length), data);
    exit(1);
}

static void push(Connection *c) {
    while (c->sent < request_length) {
        ssize_t sent = send(c->fd, request + c->sent, request_length - c->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) die("send");
        struct epoll_event event = {.events = EPOLLIN | (sent < 0 ? EPOLLOUT : 0), .data.ptr = c};
        if (sent < 0 || c->sent + (size_t)sent == request_length)
            epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
        if (sent < 0) return;
        c->sent += (size_t)sent;
    }
    c->started = now_ns();
}

static void start(Connection *c) {
    if (to_start-- <= 0) {
        close(c->fd);
        return;
    }
    c->sent = c->head = c->got = c->cut_length = 0;
    c->begun = 0;
    c->length = -1;
    memset(c->tail, 0, sizeof c->tail);
    push(c);
}

/* Read the clocks in what came; a clock that was cut is completed by what comes next. */
static void read_clocks(Connection *c, char *data, size_t length) {
    int64_t now = now_ns();
    memmove(data - c->cut_length, c->cut, c->cut_length); /* there is room in front */
    data -= c->cut_length;
    length += c->cut_length;
    size_t keep = length < STAMP_LENGTH + STAMP_DIGITS ? length : STAMP_LENGTH + STAMP_DIGITS - 1;
    const char *at = data, *end = data + length, *clock;
    while ((clock = memmem(at, (size_t)(end - at), STAMP, STAMP_LENGTH)) != NULL) {
        at = clock + STAMP_LENGTH + STAMP_DIGITS;
        if (at > end) break;
        int64_t written = strtoll(clock + STAMP_LENGTH, NULL, 10);
        if (written) note(&latency, now - written);
    }
    if (at > end) at = clock; /* cut: from its beginning */
    if ((size_t)(end - at) < keep) keep = (size_t)(end - at);
    c->cut_length = keep;
    memcpy(c->cut, end - keep, keep);
}

static void keep_answer(const Connection *c) {
    FILE *file = fopen(answer_path, "wb");
    if (file == NULL || fwrite(c->kept, 1, c->got, file) != c->got || fclose(file)) die("answer");
}

static void complete(Connection *c) {
    if ((long)c->got < least) fail("a short answer", buffer + 64, c->got);
    if (answer_path != NULL && c->kept != NULL) {
        keep_answer(c);
        answer_path = NULL;
        free(c->kept);
        c->kept = NULL;
    }
    to_end--;
    start(c);
}

static void take(Connection *c) {
    char *data = buffer + 64;
    for (;;) {
        ssize_t got = recv(c->fd, data, BUFFER, 0);
        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) fail("the connection ended within an answer", "", 0);
        size_t length = (size_t)got;
        if (c->kept != NULL) {
            c->kept = grown(c->kept, c->got + length);
            memcpy(c->kept + c->got, data, length);
        }
        if (c->got == 0) { /* servers write a head in one piece */
            if (strncmp(data, "HTTP/1.1 200 ", 13) || !(c->head = head_length(data, length)))
                fail("no answer", data, length);
            c->length = content_length(data, c->head);
        }
        c->got += length;
        if (!c->begun && c->got > c->head) {
            c->begun = 1;
            note(&first, now_ns() - c->started);
        }
        read_clocks(c, data, length);
        size_t fresh = length < 5 ? length : 5;
        memmove(c->tail, c->tail + fresh, 5 - fresh);
        memcpy(c->tail + 5 - fresh, data + length - fresh, fresh);
        if (c->length >= 0 ? c->got == c->head + (size_t)c->length
                           : memcmp(c->tail, "0\r\n\r\n", 5) == 0) {
            complete(c);
            return;
        }
        if (length < BUFFER) return;
    }
}

static void read_request(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) die(path);
    fseek(file, 0, SEEK_END);
    request_length = (size_t)ftell(file);
    rewind(file);
    request = grown(NULL, request_length);
    if (fread(request, 1, request_length, file) != request_length) die(path);
    fclose(file);
}

int main(int count, char **arguments) {
    if (count != 7) {
        fprintf(stderr, "usage: client PORT REQUEST STREAMS AT_ONCE BYTES ANSWER\n");
        return 2;
    }
    struct sockaddr_in address = loopback(arguments[1]);
    read_request(arguments[2]);
    to_start = to_end = atol(arguments[3]);
    long at_once = atol(arguments[4]);
    least = atol(arguments[5]);
    answer_path = arguments[6];
    allow_many_files();
    epoll = epoll_create1(0);
    int64_t began = now_ns();
    for (long i = 0; i < at_once && i < to_end; i++) {
        Connection *c = calloc(1, sizeof *c);
        if (c == NULL || (c->fd = socket(AF_INET, SOCK_STREAM, 0)) < 0) die("socket");
        if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) die("connect");
        prepare_socket(c->fd);
        if (i == 0) c->kept = grown(NULL, 1);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event);
        start(c);
    }
    while (to_end > 0) {
        struct epoll_event ready[MAX_EVENTS];
        int found = epoll_wait(epoll, ready, MAX_EVENTS, 60000);
        if (found == 0) fail("nothing came for a minute", "", 0);
        for (int i = 0; i < found; i++) {
            Connection *c = ready[i].data.ptr;
            if (ready[i].events & EPOLLOUT) push(c);
            if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) take(c);
        }
    }
    struct timespec cpu;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    printf("wall %lld\ncpu %lld\n", (long long)(now_ns() - began),
           (long long)cpu.tv_sec * 1000000000 + cpu.tv_nsec);
    show("first", &first);
    show("latency", &latency);
    return 0;
}
