#define _GNU_SOURCE
#include "others.h"
#include "openings.h"
#include "calls.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { CHILDREN = 256 };
static _Atomic int children[CHILDREN], born, held[CHILDREN], kept, running, started[LISTS];

static int is(const char *word, const char *other) { return !strcmp(word, other); }

static int wait_for_child(int pid) {
    int status = -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR);
    return status;
}

static void later(int pid) {
    int at = atomic_fetch_add(&born, 1);
    if (at < CHILDREN) children[at] = pid;
}

void reap_all(void) {
    for (int i = 0; i < CHILDREN; i++) {
        int pid = atomic_exchange(&children[i], 0);
        if (pid > 0) wait_for_child(pid);
    }
}

void step_reap(const struct step *step) {
    (void)step;
    reap_all();
}

static void no_children(void) {
    for (int i = 0; i < CHILDREN; i++) children[i] = held[i] = 0;
    for (int i = 0; i < LISTS; i++) started[i] = 0;
    running = 0;
}

// Whether a child that takes this list has ended, or has closed what it closes first.
static int has_begun(int which, int pid) {
    struct list *list = &script.list[which];
    siginfo_t end = {0};
    int first = 0;
    while (first < list->steps && is(script.step[list->first + first].verb, "close")) first++;
    return shared->at[which] > list->first + first || waitid(P_PID, pid, &end, WEXITED | WNOWAIT | WNOHANG) || end.si_pid;
}

// Other processes have the connections, too: until those that do nothing have ended, and those that go on have closed what is
// not theirs, what was closed meanwhile is not.
void await_runs(void) {
    for (int tries = 0; running && tries < 25000; tries++) usleep(200);
    for (int i = 0; i < CHILDREN; i++) {
        int pid = atomic_exchange(&held[i], 0);
        if (pid > 0) wait_for_child(pid);
    }
    for (int i = 0; i < script.lists; i++)
        for (int tries = 0, pid = started[i]; pid && !has_begun(i, pid) && tries < 25000; tries++) usleep(200);
}

// What a child has inherited beside the connections of its list would keep them open: as long as the child lives, no peer would see an end.
void close_others(int which) {
    struct list *list = &script.list[which];
    for (int c = 0; c < CONNECTIONS; c++) {
        int used = connections[c].fd < 0;
        for (int i = 0; i < list->steps; i++) used |= script.step[list->first + i].connection == c;
        for (int i = 0; !used && i < connections[c].count; i++) close(connections[c].aliases[i]);
        if (!used) connections[c].fd = -1;
    }
}

// Processes that do nothing with the connections, n times.
static int run_once(const struct step *step) {
    char *const command[] = {"true", NULL};
    int pid = -1, status;
    if (is(step->call, "system")) return system("true");
    if (is(step->call, "popen")) {
        FILE *other = popen("true", "r");
        return other ? pclose(other) : -1;
    }
    if (is(step->call, "spawn")) {
        if (posix_spawnp(&pid, "true", NULL, NULL, command, environ)) return -1;
        return wait_for_child(pid);
    }
    if (is(step->call, "vfork")) {
        pid = vfork();
        if (!pid) {
            execve("/bin/true", command, environ);
            _exit(1);
        }
        return wait_for_child(pid);
    }
    pid = fork();
    if (!pid) {
        if (step->piece) usleep(step->piece);
        _exit(0);
    }
    if (is(step->call, "hold")) {
        int at = atomic_fetch_add(&kept, 1) % CHILDREN, before = atomic_exchange(&held[at], pid);
        if (before > 0) wait_for_child(before);
        return 0;
    }
    status = wait_for_child(pid);
    return status;
}

void step_run(const struct step *step) {
    char text[OUTCOME];
    int status = 0;
    for (long i = 0; i < step->n; i++) {
        atomic_fetch_add(&running, 1);
        status |= run_once(step);
        atomic_fetch_sub(&running, 1);
        if (step->delay) usleep(step->delay);
        atomic_fetch_add(&shared->progress, 1);
    }
    snprintf(text, sizeof text, "status %#x", status);
    outcome(step, text);
}

// The connection by a message to a process that has closed its own copy.
static int pass(const struct step *step) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return -1;
    char byte = 0, space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    hold_descriptors();
    int pid = fork();
    let_descriptors_go();
    if (!pid) {
        struct connection *c = &connections[step->connection];
        no_children();
        forget_sets();
        close_others((int)step->n);
        close(ends[0]);
        for (int i = 0; i < c->count; i++) close(c->aliases[i]);
        if (recvmsg(ends[1], &message, 0) != 1 || !CMSG_FIRSTHDR(&message)) _exit(3);
        int fd;
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        *c = (struct connection){fd, {fd}, 1, NULL};
        take_list((int)step->n);
        _exit(0);
    }
    close(ends[1]);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &connections[step->connection].fd, sizeof(int));
    if (sendmsg(ends[0], &message, MSG_NOSIGNAL) != 1) outcome(step, strerrorname_np(errno));
    close(ends[0]);
    return pid;
}

// A program that inherits the connection, also as its standard input if that is asked for.
static int execute(const struct step *step) {
    char list[16], descriptors[32 * CONNECTIONS] = "";
    hold_descriptors();
    int used = 0, input = is(step->call, "stdin");
    snprintf(list, sizeof list, "%ld", step->n);
    for (int c = 0; c < CONNECTIONS; c++)
        if (connections[c].fd >= 0) used += snprintf(descriptors + used, sizeof descriptors - used, "%d=%d,", c, input && c == step->connection ? 0 : connections[c].fd);
    char *const command[] = {"interpreter", "child", getenv("TORTURE_SCRIPT"), getenv("TORTURE_FOLDER"), list, descriptors, NULL};
    char *plain[512];
    int count = 0;
    for (char **at = environ; *at && count < 511; at++)
        if (!is(step->call, "plainly") || strncmp(*at, "LD_PRELOAD=", 11)) plain[count++] = *at;
    plain[count] = NULL;
    // Into the environment, for nothing may be looked up between vfork and exec.
    const char *program = getenv("TORTURE_PROGRAM");
    int from = connections[step->connection].fd, pid = vfork();
    if (!pid) {
        if (input && from) {
            dup2(from, 0);
            close(from);
        }
        execve(program, command, plain);
        _exit(1);
    }
    let_descriptors_go();
    return pid;
}

void step_spawn(const struct step *step) {
    int pid;
    if (step->n < 0 || step->n >= script.lists || !script.list[step->n].child) return outcome(step, "no such list");
    if (is(step->call, "pass")) {
        pid = pass(step);
    } else if (is(step->call, "fork")) {
        hold_descriptors();
        pid = fork();
        let_descriptors_go();
        if (!pid) {
            no_children();
            forget_sets();
            close_others((int)step->n);
            take_list((int)step->n);
            _exit(0);
        }
    } else {
        pid = execute(step);
    }
    if (pid < 0) return outcome(step, strerrorname_np(errno));
    if (is(step->wait, "wait")) {
        char text[OUTCOME];
        snprintf(text, sizeof text, "status %#x", wait_for_child(pid));
        outcome(step, text);
    } else {
        started[step->n] = pid;
        later(pid);
    }
}
