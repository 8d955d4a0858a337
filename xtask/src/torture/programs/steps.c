// The steps of a script, and the processes and threads that take them.
#define _GNU_SOURCE
#include "calls.h"
#include "openings.h"
#include "others.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static int is(const char *word, const char *other) { return !strcmp(word, other); }

// What a step came to, as it stands in the outcome.
static void say(const struct step *step, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vsnprintf(shared->outcome[step - script.step], OUTCOME, format, rest);
    va_end(rest);
}

static const char *error(void) { return strerrorname_np(errno) ? strerrorname_np(errno) : "?"; }

static void moved(void) { atomic_fetch_add(&shared->progress, 1); }

static struct stream *outgoing(int connection) { return &shared->stream[2 * connection + side]; }
static struct stream *incoming(int connection) { return &shared->stream[2 * connection + !side]; }

static __thread char buffer[PIECE];

// Sends so many bytes of the pattern; how many went.
static long send_all(const struct step *step, long n, long piece, const char *call, const char *way) {
    struct connection *c = &connections[step->connection];
    struct stream *stream = outgoing(step->connection);
    long done = 0;
    if (piece > PIECE || piece <= 0) piece = PIECE;
    while (done < n) {
        long want = n - done < piece ? n - done : piece;
        uint64_t at = stream->sent;
        for (long i = 0; i < want; i++) buffer[i] = pattern(2 * step->connection + side, at + i);
        if (!strncmp(way, "first-", 6) && wait_for(step->connection, POLLOUT, way)) break;
        // The last piece of a message says that no more comes.
        ssize_t r = send_piece(c, buffer, want, is(call, "more") && done + want == n ? "send" : call, way);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0 && errno == EAGAIN) {
            if (wait_for(step->connection, POLLOUT, way)) break;
            continue;
        }
        if (r <= 0) break;
        done += r;
        stream->sent += r;
        moved();
        if (step->delay) usleep(step->delay);
    }
    return done;
}

static void step_send(const struct step *step) {
    long done = send_all(step, step->n, step->piece, step->call, step->wait);
    if (done == step->n) say(step, "%ld sent", done);
    else say(step, "%ld sent, then %s", done, error());
}

// One piece, checked against the pattern: its length, 0 at the end, -1 with errno; -2 after a wrong byte.
static long receive_one(const struct step *step, long want, const char *call, const char *way) {
    struct connection *c = &connections[step->connection];
    struct stream *stream = incoming(step->connection);
    if (want > PIECE || want <= 0) want = PIECE;
    for (;;) {
        if (!strncmp(way, "first-", 6) && wait_for(step->connection, POLLIN, way)) return -1;
        ssize_t r = receive_piece(c, buffer, want, call, way);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0 && errno == EAGAIN) {
            if (wait_for(step->connection, POLLIN, way)) return -1;
            continue;
        }
        if (r <= 0) return r;
        uint64_t at = stream->received;
        for (long i = 0; i < r; i++)
            if ((unsigned char)buffer[i] != pattern(2 * step->connection + !side, at + i)) {
                say(step, "byte %llu is not that which was sent there", (unsigned long long)(at + i));
                return -2;
            }
        stream->received += r;
        moved();
        if (step->delay) usleep(step->delay);
        return r;
    }
}

// n bytes, or all until the end if n is negative.
static void step_receive(const struct step *step) {
    long done = 0, r = 1;
    while (step->n < 0 || done < step->n) {
        long left = step->n < 0 || step->n - done > step->piece ? step->piece : step->n - done;
        r = receive_one(step, left, step->call, step->wait);
        if (r <= 0) break;
        done += r;
    }
    if (r == -2) return;
    if (r > 0) say(step, "%ld received", done);
    else if (r == 0) say(step, "%ld received, then the end", done);
    else say(step, "%ld received, then %s", done, error());
}

// Several readers of one stream: what all of them together have is said by `sum`.
static void step_share(const struct step *step) {
    struct connection *c = &connections[step->connection];
    struct stream *stream = incoming(step->connection);
    for (;;) {
        ssize_t r = receive_piece(c, buffer, step->piece > PIECE ? PIECE : step->piece, step->call, step->wait);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0 && errno == EAGAIN) {
            if (wait_for(step->connection, POLLIN, step->wait)) break;
            continue;
        }
        if (r <= 0) {
            say(step, r ? error() : "the end");
            return;
        }
        uint64_t sum = 0;
        for (long i = 0; i < r; i++) sum += (uint64_t)(unsigned char)buffer[i] * 1000003 + 1;
        stream->received += r;
        stream->sum += sum;
        moved();
        if (step->delay) usleep(step->delay);
    }
    say(step, "%s", error());
}

static void step_sum(const struct step *step) {
    struct stream *stream = incoming(step->connection);
    say(step, "%llu bytes, sum %llx", (unsigned long long)stream->received, (unsigned long long)stream->sum);
}

static void step_echo(const struct step *step) {
    long all = 0, r;
    while ((r = receive_one(step, step->piece, step->call, step->wait)) > 0) {
        all += r;
        if (send_all(step, r, r, "send", step->wait) != r) {
            say(step, "%ld received, then sending: %s", all, error());
            return;
        }
    }
    if (r == -2) return;
    say(step, "%ld received, then %s", all, r ? error() : "the end");
    shutdown(connections[step->connection].fd, SHUT_WR);
}

// Sends and receives in one thread, without blocking, until the other's end.
static void step_pump(const struct step *step) {
    struct connection *c = &connections[step->connection];
    struct stream *out = outgoing(step->connection), *in = incoming(step->connection);
    long sent = 0, got = 0, piece = step->piece > PIECE || step->piece <= 0 ? PIECE : step->piece;
    set_nonblocking(c->fd, 1);
    for (;;) {
        int stuck = 1;
        ssize_t r = recv(c->fd, buffer, piece, 0);
        if (r == 0) break;
        for (long i = 0; i < r; i++)
            if ((unsigned char)buffer[i] != pattern(2 * step->connection + !side, in->received + i)) {
                say(step, "byte %llu is not that which was sent there", (unsigned long long)in->received + i);
                return;
            }
        if (r > 0) {
            stuck = 0;
            got += r;
            in->received += r;
            moved();
        }
        if (r < 0 && errno != EAGAIN && errno != EINTR) return say(step, "%ld received, %s", got, error());
        if (sent < step->n) {
            long want = step->n - sent < piece ? step->n - sent : piece;
            for (long i = 0; i < want; i++) buffer[i] = pattern(2 * step->connection + side, out->sent + i);
            r = send(c->fd, buffer, want, MSG_NOSIGNAL);
            if (r > 0) {
                stuck = 0;
                sent += r;
                out->sent += r;
                moved();
            }
            if (r < 0 && errno != EAGAIN && errno != EINTR) return say(step, "%ld sent, %s", sent, error());
            if (sent == step->n) shutdown(c->fd, SHUT_WR);
        }
        if (stuck && wait_for(step->connection, sent < step->n ? POLLIN | POLLOUT : POLLIN, step->wait)) return say(step, "%s", error());
    }
    say(step, "%ld sent, %ld received, then the end", sent, got);
}

// Echoes `n` connections from the first on in one loop, as a server does, until each has ended.
static void step_serve(const struct step *step) {
    long pending[CONNECTIONS] = {0}, all[CONNECTIONS] = {0}, left = step->n, piece = step->piece > PIECE ? PIECE : step->piece;
    int state[CONNECTIONS] = {0}; // 0 reads, 1 has read all, 2 is done
    int set = strncmp(step->wait, "epoll", 5) && strcmp(step->wait, "edge") ? -1 : epoll_create1(EPOLL_CLOEXEC), edge = is(step->wait, "edge");
    for (int i = 0; i < step->n; i++) {
        struct epoll_event event = {EPOLLIN | (edge ? EPOLLOUT | EPOLLET : 0), {.u32 = i}};
        set_nonblocking(connections[step->connection + i].fd, 1);
        if (set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, connections[step->connection + i].fd, &event)) return say(step, "epoll_ctl: %s", error());
    }
    struct step of = *step;
    while (left) {
        int worked = 0;
        for (int i = 0; i < step->n; i++) {
            struct connection *c = &connections[of.connection = step->connection + i];
            struct stream *in = incoming(of.connection), *out = outgoing(of.connection);
            ssize_t r = state[i] || pending[i] > 4 * piece ? -1 : recv(c->fd, buffer, piece, 0);
            for (long j = 0; j < r; j++)
                if ((unsigned char)buffer[j] != pattern(2 * of.connection + !side, in->received + j))
                    return say(step, "connection %d: byte %llu is not that which was sent there", of.connection, (unsigned long long)in->received + j);
            if (r == 0) state[i] = 1, worked = 1;
            if (r > 0) {
                in->received += r;
                pending[i] += r;
                all[i] += r;
                worked = 1;
                moved();
            }
            if (pending[i]) {
                long want = pending[i] < piece ? pending[i] : piece;
                for (long j = 0; j < want; j++) buffer[j] = pattern(2 * of.connection + side, out->sent + j);
                r = send(c->fd, buffer, want, MSG_NOSIGNAL);
                if (r > 0) {
                    pending[i] -= r;
                    out->sent += r;
                    worked = 1;
                    moved();
                }
                if (r < 0 && errno != EAGAIN && errno != EINTR) return say(step, "connection %d: sending: %s", of.connection, error());
            }
            if (state[i] == 1 && !pending[i]) {
                state[i] = 2;
                left--;
                shutdown(c->fd, SHUT_WR);
                if (set >= 0) epoll_ctl(set, EPOLL_CTL_DEL, c->fd, NULL);
            }
        }
        if (worked || !left) continue;
        struct pollfd list[CONNECTIONS];
        struct epoll_event got[4];
        for (int i = 0; i < step->n; i++) {
            short events = (state[i] || pending[i] > 4 * piece ? 0 : POLLIN) | (pending[i] ? POLLOUT : 0);
            list[i] = (struct pollfd){state[i] == 2 ? -1 : connections[step->connection + i].fd, events, 0};
            struct epoll_event event = {events, {.u32 = i}};
            if (set >= 0 && !edge && state[i] != 2) epoll_ctl(set, EPOLL_CTL_MOD, connections[step->connection + i].fd, &event);
        }
        if (set >= 0) epoll_wait(set, got, 4, -1);
        else poll(list, step->n, -1);
    }
    if (set >= 0) close(set);
    int used = 0;
    char text[OUTCOME];
    for (int i = 0; i < step->n; i++) used += snprintf(text + used, sizeof text - used, "%ld ", all[i]);
    say(step, "%sreceived, then the end of each", text);
}

// A few bytes there and back, so often: how connections come into the rings.
static void step_talk(const struct step *step) {
    long done = 0;
    for (; done < step->n; done++) {
        for (int half = 0; half < 2; half++) {
            if (half == side) {
                long got = 0, r;
                for (; got < step->piece; got += r)
                    if ((r = receive_one(step, step->piece - got, step->call, step->wait)) <= 0) {
                        if (r != -2) say(step, "%ld rounds, then %s", done, r ? error() : "the end");
                        return;
                    }
            } else if (send_all(step, step->piece, step->piece, "send", step->wait) != step->piece) {
                return say(step, "%ld rounds, then sending: %s", done, error());
            }
        }
    }
    say(step, "%ld rounds", done);
}

static void step_shutdown(const struct step *step) {
    int how = is(step->call, "rd") ? SHUT_RD : is(step->call, "wr") ? SHUT_WR : SHUT_RDWR;
    say(step, "%s", shutdown(connections[step->connection].fd, how) ? error() : "done");
}

// What a quiet connection shows.
// Whether anybody sends urgent data over it: whether the kernel calls it readable at the mark depends on who came first.
static int is_urged(long connection) {
    for (int i = 0; i < script.steps; i++)
        if (script.step[i].connection == connection && is(script.step[i].verb, "urge")) return 1;
    return 0;
}

static void step_look(const struct step *step) {
    int fd = connections[step->connection].fd, unread = -1, why = 0;
    struct pollfd one = {fd, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0};
    socklen_t size = sizeof why;
    poll(&one, 1, 0);
    ioctl(fd, FIONREAD, &unread);
    ssize_t seen = recv(fd, buffer, PIECE, MSG_PEEK | MSG_DONTWAIT);
    const char *looked = seen < 0 ? error() : seen ? "bytes" : "the end";
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &size);
    if (!unread && seen < 0 && is_urged(step->connection)) one.revents &= ~POLLIN;
    say(step, "events %#x, unread %d, peek %s %zd, error %d", one.revents, unread, looked, seen > 0 ? seen : 0, why);
}

// Calls of no bytes, with nothing there or something.
static void step_zero(const struct step *step) {
    int fd = connections[step->connection].fd;
    ssize_t r = -2;
    errno = 0;
    if (is(step->call, "recv")) r = recv(fd, buffer, 0, MSG_DONTWAIT);
    if (is(step->call, "peek")) r = recv(fd, buffer, 0, MSG_DONTWAIT | MSG_PEEK);
    if (is(step->call, "trunc")) r = recv(fd, buffer, 0, MSG_DONTWAIT | MSG_TRUNC);
    if (is(step->call, "read")) set_nonblocking(fd, 1), r = read(fd, buffer, 0), set_nonblocking(fd, 0);
    if (is(step->call, "send")) r = send(fd, buffer, 0, MSG_NOSIGNAL);
    if (is(step->call, "write")) r = write(fd, buffer, 0);
    say(step, "%zd %s", r, r < 0 ? error() : "");
}

// An empty message; what it returns depends on whether the other end has closed by now.
static void step_empty(const struct step *step) { send(connections[step->connection].fd, buffer, 0, MSG_NOSIGNAL); }

// A byte to one who may be gone: what that call says.
static void step_poke(const struct step *step) {
    char byte = pattern(2 * step->connection + side, outgoing(step->connection)->sent);
    ssize_t r = send(connections[step->connection].fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (r > 0) outgoing(step->connection)->sent += r;
    say(step, "%s", r < 0 ? error() : "went");
}

// A byte of urgent data, which is none of the stream; received from its own place, or in line.
static void step_urge(const struct step *step) {
    ssize_t r = send(connections[step->connection].fd, "!", 1, MSG_OOB | MSG_NOSIGNAL);
    say(step, "%s", r < 0 ? error() : "went");
}

static void step_urged(const struct step *step) {
    int fd = connections[step->connection].fd, inline_too = 0;
    socklen_t size = sizeof inline_too;
    getsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &inline_too, &size);
    char byte = 0;
    ssize_t r = recv(fd, &byte, 1, (inline_too ? 0 : MSG_OOB) | MSG_DONTWAIT);
    say(step, "%zd %s %c", r, r < 0 ? error() : "", byte ? byte : '-');
}

// A receive that is to end by its own time, for nothing is there.
static void step_timeout(const struct step *step) {
    int fd = connections[step->connection].fd;
    struct timeval time = {step->n / 1000000, step->n % 1000000}, none = {0, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    ssize_t r;
    // With a time of its own a receive is not started again after a signal.
    do r = recv(fd, buffer, 1, 0);
    while (r < 0 && errno == EINTR);
    const char *why = r < 0 ? error() : "";
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    say(step, "%zd %s", r, why);
}

static void step_barrier(const struct step *step) {
    atomic_fetch_add(&shared->arrived[step->n], 1);
    while (shared->arrived[step->n] < script.barrier[step->n]) usleep(200);
}

// A barrier after which nothing is on its way any more: long enough on a busy machine, too.
static void step_settle(const struct step *step) {
    await_runs();
    step_barrier(step);
    usleep(30000);
}

static void on_tick(int signal) { (void)signal; }

// Signals beside everything, with restarts asked for.
static void step_ticks(const struct step *step) {
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, step->n}, {0, step->n}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

static const struct {
    const char *verb;
    void (*take)(const struct step *);
} verbs[] = {
    {"open", step_open}, {"send", step_send}, {"recv", step_receive}, {"share", step_share}, {"sum", step_sum}, {"echo", step_echo},
    {"pump", step_pump}, {"serve", step_serve}, {"talk", step_talk}, {"shut", step_shutdown}, {"look", step_look}, {"zero", step_zero}, {"empty", step_empty},
    {"poke", step_poke}, {"urge", step_urge}, {"urged", step_urged}, {"timeout", step_timeout}, {"barrier", step_barrier}, {"settle", step_settle}, {"ticks", step_ticks}, {"close", step_close}, {"dup", step_dup},
    {"option", step_option}, {"stream", step_stream}, {"many", step_many}, {"closeall", step_close_all}, {"file", step_file},
    {"visible", step_visible}, {"run", step_run}, {"spawn", step_spawn}, {"reap", step_reap},
};

void take_list(int which) {
    struct list *list = &script.list[which];
    for (int i = 0; i < list->steps; i++) {
        struct step *step = &script.step[list->first + i];
        shared->at[which] = list->first + i + 1;
        if (is(step->verb, "sleep")) usleep(step->n);
        if (is(step->verb, "kill")) raise(SIGKILL);
        for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++)
            if (is(verbs[v].verb, step->verb)) verbs[v].take(step);
        if (!*shared->outcome[step - script.step]) say(step, "done");
        moved();
    }
    shared->at[which] = 0;
}

void outcome(const struct step *step, const char *text) { say(step, "%s", text); }

static void *thread(void *which) {
    take_list((int)(intptr_t)which);
    return NULL;
}

int run_side(int which) {
    pthread_t threads[LISTS];
    int first = -1;
    side = which;
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < CONNECTIONS; i++) connections[i].fd = -1;
    if (!side) listen_for_others();
    for (int i = 0; i < script.lists; i++)
        if (script.list[i].side == side && !script.list[i].child) {
            if (first < 0) first = i;
            else pthread_create(&threads[i], NULL, thread, (void *)(intptr_t)i);
        }
    if (first < 0) return 0;
    take_list(first);
    for (int i = first + 1; i < script.lists; i++)
        if (script.list[i].side == side && !script.list[i].child) pthread_join(threads[i], NULL);
    reap_all();
    if (is(script.ending, "_exit")) _exit(0);
    return 0;
}

int run_child(int list, const char *descriptors) {
    side = script.list[list].side;
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < CONNECTIONS; i++) connections[i].fd = -1;
    int c, fd, used;
    for (; sscanf(descriptors, "%d=%d,%n", &c, &fd, &used) == 2; descriptors += used)
        if (c >= 0 && c < CONNECTIONS) connections[c] = (struct connection){fd, {fd}, 1, NULL};
    close_others(list);
    take_list(list);
    return 0;
}
