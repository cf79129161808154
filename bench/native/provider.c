/* A provider that only writes bytes made beforehand: provider PORT SCRIPT

   SCRIPT is a sequence of answers, all numbers 32 bit, little endian:
       length of key, key, microseconds between two blocks, number of blocks, (length, bytes)...
   A POST is answered with the first answer whose key stands in its body. Without an interval all
   blocks are written at once, one write each; with one, the first block goes out at once and the
   others one by one, each with the time of its writing where it has a place for it. Such streams
   start at different phases, as those of different clients do.

   Follow-ups are requests that get the first answer of the script. GET /stats tells of those since
   the last time: microseconds from the end of the answer before, on the same connection, and how
   many came on a connection that had no answer before. */
#include "wire.h"

typedef struct {
    char *data;
    uint32_t length;
    uint32_t stamp; /* where the clock is written; 0: nowhere */
} Block;

typedef struct {
    char *key;
    uint32_t key_length, interval_us, count;
    Block *blocks;
} Answer;

typedef struct {
    int fd;
    char *request;
    size_t length, capacity;
    const Answer *answer; /* being written */
    uint32_t block, offset;
    int blocked; /* waits for the socket */
    int64_t due, ended;
    char *reply; /* of GET: freed when written */
} Connection;

static Answer *answers;
static size_t answer_count;
static Connection *paced[65536];
static size_t paced_count;
static uint32_t *gaps;
static size_t gap_count, elsewhere;
static int epoll, timer;
static double phase;

static uint32_t number(FILE *file) {
    uint32_t value;
    if (fread(&value, sizeof value, 1, file) != 1) die("script");
    return value;
}

static char *bytes(FILE *file, uint32_t length) {
    char *data = grown(NULL, (size_t)length + 1);
    if (length && fread(data, 1, length, file) != length) die("script");
    data[length] = 0;
    return data;
}

static void load(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) die(path);
    int next;
    while ((next = fgetc(file)) != EOF) {
        ungetc(next, file);
        answers = grown(answers, (answer_count + 1) * sizeof *answers);
        Answer *answer = &answers[answer_count++];
        answer->key_length = number(file);
        answer->key = bytes(file, answer->key_length);
        answer->interval_us = number(file);
        answer->count = number(file);
        answer->blocks = grown(NULL, answer->count * sizeof *answer->blocks);
        for (uint32_t i = 0; i < answer->count; i++) {
            Block *block = &answer->blocks[i];
            block->length = number(file);
            block->data = bytes(file, block->length);
            char *stamp = answer->interval_us
                ? memmem(block->data, block->length, STAMP, STAMP_LENGTH) : NULL;
            block->stamp = stamp ? (uint32_t)(stamp - block->data) + STAMP_LENGTH : 0;
        }
    }
    fclose(file);
}

static void await(Connection *c, int blocked) {
    if (c->blocked == blocked) return;
    c->blocked = blocked;
    struct epoll_event event = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
}

static void drop(Connection *c) {
    for (size_t i = 0; i < paced_count; i++)
        if (paced[i] == c) paced[i--] = paced[--paced_count];
    close(c->fd);
    free(c->request);
    free(c->reply);
    free(c);
}

/* Write a piece; 1 when all of it went, 0 when the rest has to wait, -1 when nobody reads. */
static int put(Connection *c, const char *data, uint32_t length) {
    while (c->offset < length) {
        ssize_t sent = send(c->fd, data + c->offset, length - c->offset, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN) return -1;
            await(c, 1);
            return 0;
        }
        c->offset += (uint32_t)sent;
    }
    c->offset = 0;
    return 1;
}

/* Write what may be written now; -1 when the connection is gone. */
static int go_on(Connection *c) {
    const Answer *answer = c->answer;
    while (c->block < answer->count) {
        const Block *block = &answer->blocks[c->block];
        if (answer->interval_us && c->block) {
            int64_t now = now_ns();
            if (now < c->due) return 0;
            if (block->stamp && !c->offset) {
                char digits[STAMP_DIGITS + 1];
                snprintf(digits, sizeof digits, "%016lld", (long long)now);
                memcpy(block->data + block->stamp, digits, STAMP_DIGITS);
            }
        }
        int done = put(c, block->data, block->length);
        if (done != 1) return done;
        c->block++;
        c->due += (int64_t)answer->interval_us * 1000;
    }
    await(c, 0);
    c->ended = now_ns();
    c->answer = NULL;
    for (size_t i = 0; i < paced_count; i++)
        if (paced[i] == c) paced[i--] = paced[--paced_count];
    return 0;
}

static int begin(Connection *c, const Answer *answer) {
    if (answer == answers) {
        if (c->ended) {
            gaps = grown(gaps, (gap_count + 1) * sizeof *gaps);
            gaps[gap_count++] = (uint32_t)((now_ns() - c->ended) / 1000);
        } else {
            elsewhere++;
        }
    }
    c->answer = answer;
    c->block = c->offset = 0;
    if (answer->interval_us) {
        phase += 0.6180339887;
        phase -= (int)phase;
        c->due = now_ns() + (int64_t)(phase * answer->interval_us * 1000);
        paced[paced_count++] = c;
    }
    return go_on(c);
}

static int tell(Connection *c, const char *status, const char *body) {
    size_t size = strlen(body) + 128;
    char *text = grown(NULL, size);
    int length = snprintf(text, size,
        "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
        status, strlen(body), body);
    free(c->reply);
    c->reply = text;
    return put(c, text, (uint32_t)length); /* short: the socket takes it */
}

static int tell_stats(Connection *c) {
    size_t size = 64 + gap_count * 12, used;
    char *body = grown(NULL, size);
    used = (size_t)snprintf(body, size, "{\"elsewhere\":%zu,\"gaps_us\":[", elsewhere);
    for (size_t i = 0; i < gap_count; i++)
        used += (size_t)snprintf(body + used, size - used, "%s%u", i ? "," : "", gaps[i]);
    snprintf(body + used, size - used, "]}");
    gap_count = elsewhere = 0;
    int done = tell(c, "200 OK", body);
    free(body);
    return done < 0 ? -1 : 0;
}

/* Answer the request if it is complete; -1 when the connection is gone. */
static int answer_request(Connection *c) {
    size_t head = head_length(c->request, c->length);
    if (head == 0) return 0;
    long expected = content_length(c->request, head);
    const char *body = c->request + head;
    size_t length = c->length - head;
    if (expected >= 0 ? length < (size_t)expected
                      : memmem(c->request, head, "chunked", 7)
                            && (length < 5 || memcmp(body + length - 5, "0\r\n\r\n", 5)))
        return 0;
    c->length = 0;
    if (strncmp(c->request, "GET /stats ", 11) == 0) return tell_stats(c);
    if (strncmp(c->request, "POST ", 5) == 0)
        for (size_t i = 0; i < answer_count; i++)
            if (memmem(body, length, answers[i].key, answers[i].key_length))
                return begin(c, &answers[i]);
    return tell(c, "404 Not Found", "{}") < 0 ? -1 : 0;
}

static int take(Connection *c) {
    for (;;) {
        if (c->capacity - c->length < 65536) {
            c->capacity = c->capacity ? c->capacity * 2 : 131072;
            c->request = grown(c->request, c->capacity + 1);
        }
        ssize_t got = recv(c->fd, c->request + c->length, c->capacity - c->length, 0);
        if (got == 0) return -1;
        if (got < 0) return errno == EAGAIN ? 0 : -1;
        c->length += (size_t)got;
        if (answer_request(c) < 0) return -1;
    }
}

static void accept_all(int listener) {
    int fd;
    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        prepare_socket(fd);
        Connection *c = calloc(1, sizeof *c);
        if (c == NULL) die("memory");
        c->fd = fd;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    }
}

/* Write what is due, and wake up for what is due next. */
static void keep_pace(void) {
    int64_t next = 0;
    for (size_t i = 0; i < paced_count; i++) {
        Connection *c = paced[i];
        if (!c->blocked && now_ns() >= c->due && go_on(c) < 0) {
            drop(c);
            i--;
        } else if (i < paced_count && paced[i] != c) {
            i--; /* it ended, another one stands in its place */
        } else if (i < paced_count && !c->blocked && (next == 0 || c->due < next)) {
            next = c->due;
        }
    }
    struct itimerspec at = {.it_value = {.tv_sec = next / 1000000000, .tv_nsec = next % 1000000000}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: provider PORT SCRIPT\n");
        return 2;
    }
    load(arguments[2]);
    allow_many_files();
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_in address = loopback(arguments[1]);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024))
        die("listen");
    prepare_socket(listener);
    epoll = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    event.data.ptr = &timer;
    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event);
    for (;;) {
        struct epoll_event ready[MAX_EVENTS];
        int found = epoll_wait(epoll, ready, MAX_EVENTS, -1);
        for (int i = 0; i < found; i++) {
            Connection *c = ready[i].data.ptr;
            uint64_t ticks;
            if (c == NULL) accept_all(listener);
            else if ((void *)c == (void *)&timer) (void)!read(timer, &ticks, sizeof ticks);
            else if ((ready[i].events & EPOLLOUT && c->answer && go_on(c) < 0)
                     || (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && take(c) < 0))
                drop(c);
        }
        if (paced_count) keep_pace();
    }
}
