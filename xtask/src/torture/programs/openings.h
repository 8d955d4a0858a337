// How connections and descriptors come and go.
#ifndef OPENINGS_H
#define OPENINGS_H
#include "script.h"

void listen_for_others(void);
void step_open(const struct step *step);
void step_close(const struct step *step);
// What a process has of descriptors and what it knows of them are the same for who holds this: who starts a process does.
void hold_descriptors(void);
void let_descriptors_go(void);
void step_dup(const struct step *step);
void step_option(const struct step *step);
void step_stream(const struct step *step);
void step_many(const struct step *step);
void step_close_all(const struct step *step);
void step_file(const struct step *step);
void step_visible(const struct step *step);
void outcome(const struct step *step, const char *text);
#endif
