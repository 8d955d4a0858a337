// System calls on a stream, each kind of them by its name in the script.
#ifndef CALLS_H
#define CALLS_H
#include <stdio.h>
#include <sys/types.h>
#include "script.h"

enum { PIECE = 1 << 17, ALIASES = 6 };

// A connection as this process has it.
struct connection {
    int fd; // the one in use; -1: not open
    int aliases[ALIASES], count;
    FILE *file;
};

extern struct connection connections[CONNECTIONS];

unsigned char pattern(int stream, uint64_t at);
void set_nonblocking(int fd, int on);
// Waits until the connection can be read (POLLIN) or written (POLLOUT), in the way of that name; 0 unless that failed.
int wait_for(int connection, short events, const char *way);
// Forgets the sets of epoll of this thread: they are the parent's after a fork.
void forget_sets(void);
int is_own_set(int fd);
// Whether the way of waiting has calls that block.
int blocks(const char *way);
ssize_t send_piece(struct connection *c, const char *bytes, size_t n, const char *call, const char *way);
ssize_t receive_piece(struct connection *c, char *bytes, size_t n, const char *call, const char *way);
#endif
