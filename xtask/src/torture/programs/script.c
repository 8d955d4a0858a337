// Reads a script and maps the shared memory.
#include "script.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct script script;
struct shared *shared;
const char *folder;
int side;

void bail(const char *what) {
    perror(what);
    _exit(99);
}

void read_script(const char *path, struct script *to) {
    FILE *file = fopen(path, "r");
    if (!file) bail(path);
    char line[256];
    while (fgets(line, sizeof line, file)) {
        char letter, kind[NAME];
        int number;
        struct step *step = &to->step[to->steps];
        if (sscanf(line, "program %15s under %15s soon %d nofile %ld ending %15s", to->family, to->under, &to->soon, &to->nofile,
                to->ending) == 5)
            continue;
        if (sscanf(line, "list %c %d %15s", &letter, &number, kind) == 3) {
            if (number != to->lists || number >= LISTS) bail("a list out of order");
            struct list *list = &to->list[to->lists++];
            *list = (struct list){letter == 'B', !strcmp(kind, "child"), to->steps, 0};
            continue;
        }
        if (sscanf(line, "%15s %d %ld %ld %15s %15s %ld", step->verb, &step->connection, &step->n, &step->piece, step->call, step->wait,
                &step->delay) != 7)
            continue;
        if (to->steps + 1 >= STEPS || !to->lists) bail("too many steps, or one outside of a list");
        if (step->connection < 0 || step->connection >= CONNECTIONS) bail("no such connection");
        step->list = to->lists - 1;
        to->list[step->list].steps++;
        to->steps++;
        if (!strcmp(step->verb, "barrier") || !strcmp(step->verb, "settle")) {
            if (step->n < 0 || step->n >= BARRIERS) bail("no such barrier");
            to->barrier[step->n]++;
        }
    }
    fclose(file);
}

struct shared *map_shared(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct shared))) bail(path);
    void *memory = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) bail("mmap");
    close(fd);
    return memory;
}
