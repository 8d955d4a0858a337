// Other processes: those that go on with a connection, and those that have nothing to do with it.
#ifndef OTHERS_H
#define OTHERS_H
#include "script.h"

void take_list(int which);
void close_others(int which);
void step_run(const struct step *step);
void step_spawn(const struct step *step);
void step_reap(const struct step *step);
void reap_all(void);
void await_runs(void);
void outcome(const struct step *step, const char *text);
#endif
