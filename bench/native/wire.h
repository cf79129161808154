/* What provider and client share: sockets that don't block, clocks, and where a message ends. */
#ifndef SOTTOVOCE_BENCH_WIRE_H
#define SOTTOVOCE_BENCH_WIRE_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define STAMP "\"obfuscation\":\"T"
#define STAMP_LENGTH (sizeof STAMP - 1)
#define STAMP_DIGITS 16
#define MAX_EVENTS 256

static inline _Noreturn void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static inline void *grown(void *memory, size_t bytes) {
    void *more = realloc(memory, bytes);
    if (more == NULL) die("memory");
    return more;
}

/* The clock that time.monotonic_ns() of Python reads. */
static inline int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline struct sockaddr_in loopback(const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static inline void prepare_socket(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static inline void allow_many_files(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Length of a head with its blank line, 0 while that has not come. */
static inline size_t head_length(const char *data, size_t length) {
    const char *end = memmem(data, length, "\r\n\r\n", 4);
    return end == NULL ? 0 : (size_t)(end - data) + 4;
}

/* Value of Content-Length in a head, -1 if there is none. */
static inline long content_length(const char *head, size_t length) {
    static const char name[] = "\ncontent-length:";
    const size_t size = sizeof name - 1;
    for (size_t at = 0; at + size < length; at++)
        if (head[at] == '\n' && strncasecmp(head + at, name, size) == 0)
            return atol(head + at + size);
    return -1;
}

#endif
