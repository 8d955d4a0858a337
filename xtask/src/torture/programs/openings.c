#define _GNU_SOURCE
#include "openings.h"
#include "calls.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static int listener = -1, own_file = -1;
static ino_t own_inode;

static pthread_mutex_t descriptors = PTHREAD_MUTEX_INITIALIZER;

void hold_descriptors(void) { pthread_mutex_lock(&descriptors); }
void let_descriptors_go(void) { pthread_mutex_unlock(&descriptors); }

static int is(const char *word, const char *other) { return !strcmp(word, other); }

static socklen_t address(struct sockaddr_storage *to, int port) {
    memset(to, 0, sizeof *to);
    if (is(script.family, "unix")) {
        struct sockaddr_un *path = (void *)to;
        path->sun_family = AF_UNIX;
        snprintf(path->sun_path, sizeof path->sun_path, "%s/socket", folder);
        return sizeof *path;
    }
    if (is(script.family, "tcp6")) {
        struct sockaddr_in6 *six = (void *)to;
        *six = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
        return sizeof *six;
    }
    struct sockaddr_in *four = (void *)to;
    *four = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    return sizeof *four;
}

void listen_for_others(void) {
    struct sockaddr_storage at;
    socklen_t size = address(&at, 0);
    listener = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (void *)&at, size) || listen(listener, 64)) bail("listening");
    size = sizeof at;
    getsockname(listener, (void *)&at, &size);
    int port = at.ss_family == AF_UNIX ? 0 : ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port);
    shared->port = port + 1;
}

// Both sides open their connections in the order of the script, so that the two ends have one number.
void step_open(const struct step *step) {
    int fd;
    if (!side) {
        fd = is(step->call, "flags") ? accept4(listener, NULL, NULL, SOCK_NONBLOCK) : accept(listener, NULL, NULL);
    } else {
        struct sockaddr_storage at;
        while (!shared->port) usleep(200);
        socklen_t size = address(&at, shared->port - 1);
        fd = socket(at.ss_family, SOCK_STREAM, 0);
        if (is(step->call, "stream")) connections[step->connection].file = fdopen(fd, "r");
        if (is(step->call, "flags")) set_nonblocking(fd, 1);
        if (connect(fd, (void *)&at, size)) {
            struct pollfd one = {fd, POLLOUT, 0};
            int why = errno;
            socklen_t length = sizeof why;
            if (why == EINPROGRESS) poll(&one, 1, -1), getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &length);
            if (why) {
                outcome(step, strerrorname_np(why));
                close(fd);
                return;
            }
        }
    }
    if (fd < 0) return outcome(step, strerrorname_np(errno));
    if (is(step->call, "flags") && step->n) set_nonblocking(fd, 0);
    // Small messages that wait for an acknowledgement of the one before would make quiet connections loud.
    int on = 1;
    if (!is(script.family, "unix")) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct connection *c = &connections[step->connection];
    if (c->file) setvbuf(c->file, NULL, _IONBF, 0);
    c->fd = c->aliases[0] = fd;
    c->count = 1;
}

void step_close(const struct step *step) {
    // First of all it is forgotten: its number may be another's by then. A child that another thread starts meanwhile would keep it open.
    hold_descriptors();
    struct connection was = connections[step->connection], *c = &was;
    connections[step->connection] = (struct connection){.fd = -1};
    int r = 0;
    for (int i = 0; i < c->count; i++) {
        if (c->file && fileno(c->file) == c->aliases[i]) r |= fclose(c->file);
        else r |= close(c->aliases[i]);
    }
    let_descriptors_go();
    outcome(step, r ? strerrorname_np(errno) : "done");
}

// From now on by another descriptor, of that number if there is one; the old one stays or is closed.
void step_dup(const struct step *step) {
    struct connection *c = &connections[step->connection];
    if (c->count == ALIASES) return;
    hold_descriptors();
    int fd = is(step->call, "dup") ? dup(c->fd) : is(step->call, "fcntl") ? fcntl(c->fd, F_DUPFD, (int)step->n) : dup2(c->fd, (int)step->n);
    if (fd >= 0) c->fd = c->aliases[c->count++] = fd;
    else outcome(step, strerrorname_np(errno));
    let_descriptors_go();
}

void step_option(const struct step *step) {
    int fd = connections[step->connection].fd, value = step->n, level = SOL_SOCKET, name = -1;
    struct linger linger = {1, (int)step->n};
    struct {
        const char *word;
        int level, name;
    } known[] = {{"lowat", SOL_SOCKET, SO_RCVLOWAT}, {"oobinline", SOL_SOCKET, SO_OOBINLINE}, {"rcvbuf", SOL_SOCKET, SO_RCVBUF},
        {"sndbuf", SOL_SOCKET, SO_SNDBUF}, {"keepalive", SOL_SOCKET, SO_KEEPALIVE}, {"nodelay", IPPROTO_TCP, TCP_NODELAY},
        {"cork", IPPROTO_TCP, TCP_CORK}, {"linger", SOL_SOCKET, SO_LINGER}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is(known[i].word, step->call)) level = known[i].level, name = known[i].name;
    int r = name == SO_LINGER && level == SOL_SOCKET ? setsockopt(fd, level, name, &linger, sizeof linger) : setsockopt(fd, level, name, &value, sizeof value);
    int why = r ? errno : 0, back[2] = {-1, -1};
    socklen_t size = sizeof back;
    getsockopt(fd, level, name, back, &size);
    char text[OUTCOME];
    // Nobody writes while it is in: a script that leaves steps out must not leave it in.
    if (name == TCP_CORK && level == IPPROTO_TCP) setsockopt(fd, level, name, &(int){0}, sizeof value);
    snprintf(text, sizeof text, "%s, reads %d %d", why ? strerrorname_np(why) : "set", back[0], back[1]);
    outcome(step, text);
}

// A stream of the C library over the descriptor.
void step_stream(const struct step *step) {
    struct connection *c = &connections[step->connection];
    if (c->file) return;
    c->file = fdopen(c->fd, "r");
    if (c->file) setvbuf(c->file, NULL, _IONBF, 0);
}

// A list of n descriptors, looked at without waiting.
void step_many(const struct step *step) {
    static __thread struct pollfd list[1024];
    int n = step->n > 1024 ? 1024 : step->n;
    for (int i = 0; i < n; i++) list[i] = (struct pollfd){i ? 2 : connections[step->connection].fd, i ? 0 : POLLIN, 0};
    poll(list, n, 0);
}

static int is_known(int fd) {
    if (fd < 3 || fd == listener || fd == own_file || is_own_set(fd)) return 1;
    for (int c = 0; c < CONNECTIONS; c++)
        for (int i = 0; i < connections[c].count; i++)
            if (connections[c].aliases[i] == fd) return 1;
    return 0;
}

// As a daemon that starts: every descriptor that it does not know, from n on.
void step_close_all(const struct step *step) {
    int from = step->n;
    for (int fd = from; fd <= 1024; fd++) {
        if (is(step->call, "range") || is(step->call, "rest")) {
            if (fd < 1024 && !is_known(fd)) continue;
            if (fd > from) close_range(from, fd - 1, 0);
            from = fd + 1;
        } else if (fd < 1024 && !is_known(fd)) {
            if (is(step->call, "raw")) syscall(SYS_close, fd);
            else close(fd);
        }
    }
    // And those above any limit, as `closefrom` does.
    if (is(step->call, "rest")) close_range(1024, ~0u, 0);
}

// The program's own file: made at a number, then used and looked after.
void step_file(const struct step *step) {
    char path[256];
    struct stat now;
    if (own_file < 0) {
        snprintf(path, sizeof path, "%s/own%d", folder, side);
        int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        own_file = step->n ? fcntl(fd, F_DUPFD_CLOEXEC, (int)step->n) : fd;
        if (step->n) close(fd);
        if (fstat(own_file, &now)) bail("own file");
        own_inode = now.st_ino;
        return;
    }
    if (fstat(own_file, &now)) return outcome(step, strerrorname_np(errno));
    if (now.st_ino != own_inode) return outcome(step, "another file");
    if (write(own_file, "x", 1) != 1) return outcome(step, strerrorname_np(errno));
    char text[OUTCOME];
    snprintf(text, sizeof text, "%ld bytes", (long)now.st_size);
    outcome(step, text);
}

// Descriptors that the program did not make.
void step_visible(const struct step *step) {
    char text[OUTCOME] = "none";
    int used = 0;
    for (int fd = 3; fd < 1024 && used < 100; fd++)
        if (!is_known(fd) && fcntl(fd, F_GETFD) >= 0) used += snprintf(text + used, sizeof text - used, "%d ", fd);
    outcome(step, text);
}
