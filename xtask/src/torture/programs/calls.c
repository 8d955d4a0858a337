#define _GNU_SOURCE
#include "calls.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

struct connection connections[CONNECTIONS];

// Depends on the position in all its bytes, so that bytes lost, doubled or out of order show.
unsigned char pattern(int stream, uint64_t at) {
    uint64_t x = (at + 1) * 0x9E3779B97F4A7C15u + (uint64_t)stream * 0xBF58476D1CE4E5B9u;
    return (x ^ (x >> 29)) >> 32;
}

void set_nonblocking(int fd, int on) {
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && !!(flags & O_NONBLOCK) != on) fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

int blocks(const char *way) { return !strcmp(way, "block") || !strncmp(way, "first-", 6) || !strcmp(way, "timeo"); }

// Sets of this thread, by connection and direction; `of` and `flags` tell a member that is another one now.
static __thread struct set {
    int fd, of;
    unsigned flags;
} sets[CONNECTIONS][2];

void forget_sets(void) { memset(sets, 0, sizeof sets); }

int is_own_set(int fd) {
    for (int c = 0; c < CONNECTIONS; c++)
        for (int d = 0; d < 2; d++)
            if (sets[c][d].of && sets[c][d].fd == fd) return 1;
    return 0;
}

static int wait_epoll(int connection, int fd, short events, const char *way) {
    unsigned flags = !strcmp(way, "edge") ? EPOLLET : !strcmp(way, "oneshot") ? EPOLLONESHOT : 0;
    struct epoll_event event = {.events = (events & POLLIN ? EPOLLIN | EPOLLRDHUP : 0) | (events & POLLOUT ? EPOLLOUT : 0) | flags}, got;
    struct set *set = &sets[connection][events == POLLOUT];
    int mode = events == (POLLIN | POLLOUT) || !strcmp(way, "newset");
    int own = -1, r;
    if (mode) {
        own = epoll_create1(EPOLL_CLOEXEC);
        if (own < 0 || epoll_ctl(own, EPOLL_CTL_ADD, fd, &event)) return -1;
    } else if (set->of != fd + 1 || set->flags != flags) {
        if (set->of) close(set->fd);
        *set = (struct set){epoll_create1(EPOLL_CLOEXEC), fd + 1, flags};
        if (set->fd < 0 || epoll_ctl(set->fd, EPOLL_CTL_ADD, fd, &event)) return -1;
    } else if (flags & EPOLLONESHOT && epoll_ctl(set->fd, EPOLL_CTL_MOD, fd, &event)) {
        return -1;
    }
    do r = !strcmp(way, "pwait") ? epoll_pwait(mode ? own : set->fd, &got, 1, -1, NULL) : epoll_wait(mode ? own : set->fd, &got, 1, -1);
    while (r < 0 && errno == EINTR);
    if (mode) close(own);
    return r < 0 ? -1 : 0;
}

static int wait_select(int fd, short events, int masked) {
    fd_set in, out;
    int r;
    do {
        FD_ZERO(&in);
        FD_ZERO(&out);
        if (events & POLLIN) FD_SET(fd, &in);
        if (events & POLLOUT) FD_SET(fd, &out);
        sigset_t none;
        sigemptyset(&none);
        r = masked ? pselect(fd + 1, &in, &out, NULL, NULL, &none) : select(fd + 1, &in, &out, NULL, NULL);
    } while (r < 0 && errno == EINTR);
    return r < 0 ? -1 : 0;
}

int wait_for(int connection, short events, const char *way) {
    int fd = connections[connection].fd, r;
    if (!strncmp(way, "first-", 6)) way += 6;
    if (!strcmp(way, "spin")) {
        usleep(200);
        return 0;
    }
    if ((!strcmp(way, "select") || !strcmp(way, "pselect")) && fd < FD_SETSIZE) return wait_select(fd, events, way[0] == 'p');
    if (!strcmp(way, "epoll") || !strcmp(way, "edge") || !strcmp(way, "oneshot") || !strcmp(way, "newset") || !strcmp(way, "pwait"))
        return wait_epoll(connection, fd, events, way);
    struct pollfd one = {fd, events, 0};
    do r = !strcmp(way, "ppoll") ? ppoll(&one, 1, NULL, NULL) : poll(&one, 1, -1);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -1 : 0;
}

// Descriptors are set to wait or not where the call has no flag for it; both threads of a connection live with either.
static void prepare(int fd, const char *way, int option) {
    if (!strcmp(way, "timeo")) {
        struct timeval time = {0, 100000};
        setsockopt(fd, SOL_SOCKET, option, &time, sizeof time);
    }
    if (!blocks(way)) set_nonblocking(fd, 1);
}

static ssize_t splice_out(int fd, const char *bytes, size_t n) {
    int ends[2];
    if (pipe(ends)) return -1;
    if (n > 4096) n = 4096;
    ssize_t all = write(ends[1], bytes, n), went = 0;
    while (went < all) {
        ssize_t r = splice(ends[0], NULL, fd, NULL, all - went, 0);
        if (r <= 0) break;
        went += r;
    }
    int why = errno;
    close(ends[0]);
    close(ends[1]);
    errno = why;
    return went ? went : -1;
}

static ssize_t splice_in(int fd, char *bytes, size_t n) {
    int ends[2];
    if (pipe(ends)) return -1;
    ssize_t r = splice(fd, NULL, ends[1], NULL, n > 4096 ? 4096 : n, 0);
    int why = errno;
    if (r > 0 && read(ends[0], bytes, r) != r) bail("a pipe");
    close(ends[0]);
    close(ends[1]);
    errno = why;
    return r;
}

static ssize_t file_out(int fd, const char *bytes, size_t n) {
    int file = memfd_create("torture", MFD_CLOEXEC);
    if (file < 0 || write(file, bytes, n) != (ssize_t)n) bail("memfd");
    off_t from = 0;
    ssize_t r = sendfile(fd, file, &from, n);
    int why = errno;
    close(file);
    errno = why;
    return r;
}

ssize_t send_piece(struct connection *c, const char *bytes, size_t n, const char *call, const char *way) {
    int fd = c->fd, flags = MSG_NOSIGNAL | (blocks(way) ? 0 : MSG_DONTWAIT);
    struct iovec parts[3] = {{(char *)bytes, n / 3}, {(char *)bytes + n / 3, n / 3}, {(char *)bytes + n / 3 * 2, n - n / 3 * 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    prepare(fd, way, SO_SNDTIMEO);
    if (!strcmp(call, "write")) return write(fd, bytes, n);
    if (!strcmp(call, "writev")) return writev(fd, parts, 3);
    if (!strcmp(call, "sendmsg")) return sendmsg(fd, &message, flags);
    if (!strcmp(call, "sendto")) return sendto(fd, bytes, n, flags, NULL, 0);
    if (!strcmp(call, "more")) return send(fd, bytes, n, flags | MSG_MORE);
    if (!strcmp(call, "sendfile")) return file_out(fd, bytes, n);
    if (!strcmp(call, "splice")) return splice_out(fd, bytes, n);
    if (!strcmp(call, "sendmmsg")) {
        struct mmsghdr many = {.msg_hdr = message};
        int r = sendmmsg(fd, &many, 1, flags);
        return r == 1 ? (ssize_t)many.msg_len : -1;
    }
    return send(fd, bytes, n, flags);
}

ssize_t receive_piece(struct connection *c, char *bytes, size_t n, const char *call, const char *way) {
    int fd = c->fd, flags = blocks(way) ? 0 : MSG_DONTWAIT;
    struct iovec parts[3] = {{bytes, n / 3}, {bytes + n / 3, n / 3}, {bytes + n / 3 * 2, n - n / 3 * 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    prepare(fd, way, SO_RCVTIMEO);
    if (!strcmp(call, "read")) return read(fd, bytes, n);
    if (!strcmp(call, "readv")) return readv(fd, parts, 3);
    if (!strcmp(call, "recvmsg")) return recvmsg(fd, &message, flags);
    if (!strcmp(call, "recvfrom")) return recvfrom(fd, bytes, n, flags, NULL, NULL);
    if (!strcmp(call, "waitall")) return recv(fd, bytes, n, flags | MSG_WAITALL);
    if (!strcmp(call, "splice")) return splice_in(fd, bytes, n);
    if (!strcmp(call, "peek")) {
        static __thread char looked[PIECE];
        ssize_t seen = recv(fd, looked, n, flags | MSG_PEEK);
        if (seen <= 0) return seen;
        // What a look has promised is there; nobody else reads where a script peeks.
        ssize_t r = recv(fd, bytes, seen, flags);
        if (r <= 0 || !memcmp(looked, bytes, r)) return r;
        errno = EBADMSG;
        return -1;
    }
    if (!strcmp(call, "recvmmsg")) {
        struct mmsghdr many = {.msg_hdr = message};
        int r = recvmmsg(fd, &many, 1, flags, NULL);
        return r == 1 ? (ssize_t)many.msg_len : -1;
    }
    if (!strcmp(call, "fread")) {
        if (!c->file) {
            c->file = fdopen(fd, "r");
            if (!c->file) return -1;
            setvbuf(c->file, NULL, _IONBF, 0);
        }
        clearerr(c->file);
        errno = 0;
        size_t r = fread(bytes, 1, n, c->file);
        return r || feof(c->file) ? (ssize_t)r : -1;
    }
    return recv(fd, bytes, n, flags);
}
