// The script of one random program, and the memory that its processes share.
//
// A script names the lists of steps: those of side A, which accepts, and of side B, which connects. A list belongs to a
// thread, or to a child process that a step starts. Outcomes, positions and barriers lie in shared memory, so that they need
// no descriptor, outlive a killed process, and go past the sockets library.
#ifndef SCRIPT_H
#define SCRIPT_H
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { CONNECTIONS = 16, LISTS = 24, STEPS = 512, BARRIERS = 256, OUTCOME = 112, NAME = 16 };

struct step {
    char verb[NAME];
    int connection;
    long n;
    long piece;
    char call[NAME];
    char wait[NAME];
    long delay; // microseconds
    int list;
};

struct list {
    int side;  // 0 is A, 1 is B
    int child; // run by a child process, not by a thread
    int first, steps;
};

struct script {
    char family[NAME];
    char under[NAME]; // which side has the library: both, A, B, none
    int soon;
    long nofile;
    char ending[NAME];
    int lists, steps;
    struct list list[LISTS];
    struct step step[STEPS];
    int barrier[BARRIERS]; // how many steps name it
};

// One direction of a connection: 2 * connection + the sending side.
struct stream {
    _Atomic uint64_t sent, received, sum;
};

struct shared {
    _Atomic int port; // of the listener, + 1; over Unix sockets 1
    _Atomic uint64_t progress;
    _Atomic int arrived[BARRIERS];
    _Atomic int at[LISTS]; // the step that a list is in, + 1
    struct stream stream[2 * CONNECTIONS];
    char outcome[STEPS][OUTCOME];
};

void read_script(const char *path, struct script *script);
struct shared *map_shared(const char *path);
void bail(const char *what);

// What a process of the program is.
extern struct script script;
extern struct shared *shared;
extern const char *folder;
extern int side;

int run_side(int which);
int run_child(int list, const char *descriptors);
#endif
