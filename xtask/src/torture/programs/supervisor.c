// Runs the two sides of a script and tells what came of each step.
//
//     interpreter run SCRIPT FOLDER LIBRARY REPORT STALL_MS      LIBRARY is - for a plain run
//
// The sides and whatever they start are in two groups of processes, which end with this one: when the run is over, when
// nothing has moved for so long, or when the standard input ends, which is how whoever started this says that it is gone.
#define _GNU_SOURCE
#include "script.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pid_t group[2];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void limit_descriptors(void) {
    struct rlimit limit = {script.nofile, script.nofile};
    if (script.nofile < 0) {
        // As many as there can be: nothing has a number above that.
        FILE *file = fopen("/proc/sys/fs/nr_open", "r");
        unsigned long most;
        if (!file || fscanf(file, "%lu", &most) != 1) return;
        fclose(file);
        limit.rlim_cur = limit.rlim_max = most;
    }
    if (script.nofile) setrlimit(RLIMIT_NOFILE, &limit);
}

static pid_t start(int which, char **arguments) {
    static const char *const names[] = {"A", "B"};
    pid_t pid = fork();
    if (pid) return pid;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    limit_descriptors();
    const char *library = arguments[4], *report = arguments[5];
    int with = strcmp(library, "-") && (!strcmp(script.under, "both") || !strcmp(script.under, names[which]));
    char program[4096];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n < 0) bail("own name");
    program[n] = 0;
    setenv("TORTURE_PROGRAM", program, 1);
    setenv("TORTURE_SCRIPT", arguments[2], 1);
    setenv("TORTURE_FOLDER", arguments[3], 1);
    unsetenv("LD_PRELOAD");
    unsetenv("OVERSIDE_SOCKETS_SOON");
    unsetenv("OVERSIDE_SOCKETS_REPORT");
    if (with) {
        setenv("LD_PRELOAD", library, 1);
        setenv("OVERSIDE_SOCKETS_REPORT", report, 1);
        if (script.soon) setenv("OVERSIDE_SOCKETS_SOON", "1", 1);
    }
    // What comes from outside is not the program's.
    if (!freopen("/dev/null", "r", stdin)) bail("/dev/null");
    execl(program, "interpreter", names[which], arguments[2], arguments[3], NULL);
    bail("exec");
    return -1;
}

static void print_file(const char *label, const char *path) {
    char line[512];
    FILE *file = fopen(path, "r");
    if (!file) return;
    for (int lines = 0; lines < 3 && fgets(line, sizeof line, file); lines++) {
        line[strcspn(line, "\n")] = 0;
        if (*line) printf(" %s[%s]", label, line);
    }
    fclose(file);
}

// In what each thread of the groups waits, as far as this may be asked.
static void print_threads(void) {
    DIR *all = opendir("/proc");
    struct dirent *entry, *task;
    while (all && (entry = readdir(all))) {
        char path[300], stat[512], *behind;
        int pid = atoi(entry->d_name), of = 0;
        if (pid <= 0) continue;
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        size_t n = fread(stat, 1, sizeof stat - 1, file);
        fclose(file);
        stat[n] = 0;
        if (!(behind = strrchr(stat, ')')) || sscanf(behind + 1, " %*c %*d %d", &of) != 1 || (of != group[0] && of != group[1])) continue;
        snprintf(path, sizeof path, "/proc/%d/task", pid);
        DIR *tasks = opendir(path);
        while (tasks && (task = readdir(tasks))) {
            if (task->d_name[0] == '.') continue;
            printf("thread %c pid %d task %s:", of == group[0] ? 'A' : 'B', pid, task->d_name);
            static const char *const files[] = {"syscall", "wchan", "stack"};
            for (int i = 0; i < 3; i++) {
                snprintf(path, sizeof path, "/proc/%d/task/%s/%s", pid, task->d_name, files[i]);
                print_file(files[i], path);
            }
            printf("\n");
        }
        if (tasks) closedir(tasks);
    }
    if (all) closedir(all);
}

// What lies in the folder, the folder and this very program: nobody else is there to do it.
static void remove_folder(void) {
    char program[4096];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n > 0) {
        program[n] = 0;
        unlink(program);
    }
    DIR *all = opendir(folder);
    struct dirent *entry;
    while (all && (entry = readdir(all))) {
        char path[4400];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        unlink(path);
    }
    if (all) closedir(all);
    rmdir(folder);
    char parent[4096];
    snprintf(parent, sizeof parent, "%s", folder);
    char *last = strrchr(parent, '/');
    if (!last) return;
    *last = 0;
    // Goes with the last run in it.
    rmdir(parent);
}

static void print_outcomes(void) {
    for (int i = 0; i < script.steps; i++) printf("outcome %d %s\n", i, *shared->outcome[i] ? shared->outcome[i] : "unfinished");
    for (int i = 0; i < script.lists; i++)
        if (shared->at[i]) printf("in list %d step %d\n", i, shared->at[i] - 1);
}

static int supervise(char **arguments) {
    int status[2] = {-1, -1}, left = 2, patience = atoi(arguments[6]), stalled = 0, gone = 0;
    uint64_t seen = 0;
    double since = now();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    // An interrupt is for whoever started this; its end is what ends the run.
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 2; i++) {
        group[i] = start(i, arguments);
        setpgid(group[i], group[i]);
    }
    while (left && !stalled) {
        struct pollfd parent = {0, POLLIN, 0};
        if (poll(&parent, 1, 2) > 0) {
            gone = 1;
            break;
        }
        for (int i = 0; i < 2; i++)
            if (status[i] < 0 && waitpid(group[i], &status[i], WNOHANG) == group[i]) left--, since = now();
        uint64_t progress = shared->progress;
        if (progress != seen) seen = progress, since = now();
        stalled = (now() - since) * 1000 > patience;
    }
    if (stalled) {
        printf("stalled: nothing moved for %d ms\n", patience);
        print_threads();
    }
    for (int i = 0; i < 2; i++) kill(-group[i], SIGKILL);
    print_outcomes();
    for (int i = 0; i < 2; i++) printf("end %c %s %d\n", "AB"[i], status[i] < 0 ? "running" : WIFSIGNALED(status[i]) ? "signal" : "exit",
        status[i] < 0 ? 0 : WIFSIGNALED(status[i]) ? WTERMSIG(status[i]) : WEXITSTATUS(status[i]));
    fflush(stdout);
    // Their groups are gone now; grandchildren have become ours.
    while (waitpid(-1, NULL, 0) > 0);
    struct pollfd parent = {0, POLLIN, 0};
    if (gone || poll(&parent, 1, 0) > 0) remove_folder();
    return 0;
}

int main(int count, char **arguments) {
    if (count < 4) return 2;
    char path[4096];
    folder = arguments[3];
    read_script(arguments[2], &script);
    snprintf(path, sizeof path, "%s/shared", folder);
    shared = map_shared(path);
    if (!strcmp(arguments[1], "run") && count == 7) return supervise(arguments);
    if (!strcmp(arguments[1], "child") && count == 6) return run_child(atoi(arguments[4]), arguments[5]);
    return run_side(arguments[1][0] == 'B');
}
