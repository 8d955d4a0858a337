/* What both programs have in common: scattered records, one stretch of sending or receiving at a time, and the words that are
 * exchanged with the process that measures. A network is what net_* of the file that includes this one say.
 *
 * Arguments: send|receive REGION_BYTES RECORD_BYTES RECORDS_A_MESSAGE PROVIDER [ADDRESS].
 * A receiver says its address, then for every line "check" or "plain" that it reads "ready", and once all has come
 * "done END_NS CPU_NS BYTES DIGEST".
 * A sender says "ready ENTRIES", then "sent START_NS CPU_NS BYTES REQUESTS" for every line "gather|pack SLICE_NS MESSAGES"; the
 * stretch ends at whichever comes first. After "rest" both sleep until the next such line. A stretch of a minute ends the process.
 */
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Messages under way at most; as many bytes of transmit buffers and of receives. */
#define DEPTH 128
#define RING_BYTES (1 << 20)
#define END_BYTES 8
#define STEP 0x9E3779B1ull

static size_t region_bytes, record_bytes, per_message, pitch, places, next_place;
static char *region, *transmit;
/* Gather entries that a message may have, and messages whose memory the network still needs. */
static size_t entries_max, sending[DEPTH], sending_count;
static size_t depth;
static struct iovec *lists;
static uint64_t end_word;
/* Receiving: slots of the ring, and what came. */
static size_t slots, slot_bytes;
static char *ring;
static uint64_t bytes_in, bytes_due, digest_in;
static int checking;

static void net_open(const char *provider, int sender);
static const char *net_address(void);
static void net_connect(const char *address);
static void net_accept(void);
/* Whether it was taken; 0 to try again. */
static int net_send(size_t slot, const struct iovec *list, size_t count);
static void net_post_receive(size_t slot);
/* Calls sent() and received(). */
static void net_progress(void);
/* Until everything that was sent has left. */
static void net_flush(void);

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void *memory(size_t bytes) {
    void *at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!at) fail("memory", "there is none left");
    return memset(at, 1, bytes);
}

static void sent(size_t slot) { sending[sending_count++] = slot; }

static void received(size_t slot, size_t bytes) {
    const char *at = ring + slot * slot_bytes;
    if (bytes == END_BYTES) {
        memcpy(&bytes_due, at, END_BYTES);
    } else {
        bytes_in += bytes;
        for (size_t record = 0; checking && record < bytes / record_bytes; record++) {
            uint64_t hash = 0xcbf29ce484222325ull;
            for (size_t i = 0; i < record_bytes; i++)
                hash = (hash ^ (unsigned char)at[record * record_bytes + i]) * 0x100000001b3ull;
            /* A sum, since messages of some protocols overtake each other. */
            digest_in += hash;
        }
    }
    net_post_receive(slot);
}

/* The next record, in the order in which Overside's side takes them. */
static char *take(void) {
    size_t place = (next_place++ * STEP) & (places - 1);
    return region + place * pitch;
}

static size_t free_slot(void) {
    while (sending_count == 0) net_progress();
    return sending[--sending_count];
}

static void send_list(size_t slot, size_t count) {
    while (!net_send(slot, lists + slot * entries_max, count)) net_progress();
}

/* Sends one message of records, in as many as the network's gather lists are too short for. Returns how many that were. */
static size_t send_message(int packed) {
    size_t requests = 0;
    for (size_t left = per_message; left > 0; requests++) {
        size_t slot = free_slot(), count = packed || left < entries_max ? left : entries_max;
        struct iovec *list = lists + slot * entries_max;
        if (packed) {
            char *to = transmit + slot * per_message * record_bytes;
            list[0] = (struct iovec){to, count * record_bytes};
            for (size_t i = 0; i < count; i++) memcpy(to + i * record_bytes, take(), record_bytes);
            send_list(slot, 1);
        } else {
            for (size_t i = 0; i < count; i++) list[i] = (struct iovec){take(), record_bytes};
            send_list(slot, count);
        }
        left -= count;
    }
    return requests;
}

static void run(int packed, uint64_t slice_ns, uint64_t messages) {
    uint64_t start = clock_ns(CLOCK_MONOTONIC), cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t done = 0, requests = 0;
    next_place = 0;
    while (done < messages && clock_ns(CLOCK_MONOTONIC) - start < slice_ns)
        for (int i = 0; i < 16 && done < messages; i++, done++) requests += send_message(packed);
    size_t slot = free_slot();
    end_word = done * per_message * record_bytes;
    lists[slot * entries_max] = (struct iovec){&end_word, END_BYTES};
    send_list(slot, 1);
    while (sending_count < depth) net_progress();
    net_flush();
    cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("sent %llu %llu %llu %llu\n", (unsigned long long)start, (unsigned long long)cpu,
           (unsigned long long)end_word, (unsigned long long)requests);
}

static void receive(void) {
    uint64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    bytes_in = digest_in = 0;
    bytes_due = UINT64_MAX;
    puts("ready");
    fflush(stdout);
    while (bytes_in != bytes_due) net_progress();
    uint64_t end = clock_ns(CLOCK_MONOTONIC);
    printf("done %llu %llu %llu %llu\n", (unsigned long long)end,
           (unsigned long long)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu), (unsigned long long)bytes_in,
           (unsigned long long)digest_in);
}

/* The next line. Until "rest" has come the network goes on meanwhile, or what was sent last might never arrive; from then on this
 * process takes no time from others that are measured. Nothing when the one that measures has gone. */
static char *line(void) {
    static char text[256];
    static int resting;
    for (;;) {
        struct pollfd in = {0, POLLIN, 0};
        fflush(stdout);
        alarm(0);
        while (poll(&in, 1, resting ? -1 : 1) == 0) net_progress();
        alarm(60);
        if (!fgets(text, sizeof text, stdin)) return NULL;
        resting = strncmp(text, "rest", 4) == 0;
        if (!resting) return text;
    }
}

static void sender(const char *address) {
    region = memory(region_bytes);
    for (size_t at = 0; at < region_bytes / 8; at++) {
        uint64_t word = at * 0x9E3779B97F4A7C15ull;
        memcpy(region + at * 8, &word, 8);
    }
    depth = RING_BYTES / (per_message * record_bytes);
    depth = depth < 8 ? 8 : depth > DEPTH ? DEPTH : depth;
    transmit = memory(depth * per_message * record_bytes);
    net_connect(address);
    if (entries_max > per_message) entries_max = per_message;
    lists = memory(depth * entries_max * sizeof *lists);
    for (size_t slot = 0; slot < depth; slot++) sent(slot);
    printf("ready %zu\n", entries_max);
    for (char *text; (text = line());) {
        char way[16];
        unsigned long long slice, messages;
        if (sscanf(text, "%15s %llu %llu", way, &slice, &messages) != 3) fail("sender", "what is that line?");
        run(strcmp(way, "pack") == 0, slice, messages);
    }
}

static void receiver(void) {
    slot_bytes = (per_message * record_bytes + 63) / 64 * 64;
    slots = RING_BYTES / slot_bytes;
    slots = slots < 4 ? 4 : slots > DEPTH ? DEPTH : slots;
    ring = memory(slots * slot_bytes);
    printf("%s\n", net_address());
    fflush(stdout);
    net_accept();
    for (char *text; (text = line());) {
        checking = strncmp(text, "check", 5) == 0;
        receive();
    }
}

int main(int count, char **arguments) {
    if (count < 6) fail("arguments", "send|receive REGION RECORD RECORDS PROVIDER [ADDRESS]");
    /* Asked and not killed: libfabric takes its segment out of /dev/shm when it is. */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    int sends = strcmp(arguments[1], "send") == 0;
    region_bytes = strtoull(arguments[2], NULL, 10);
    record_bytes = strtoull(arguments[3], NULL, 10);
    per_message = strtoull(arguments[4], NULL, 10);
    for (pitch = 1; pitch < record_bytes;) pitch *= 2;
    places = region_bytes / pitch;
    setvbuf(stdin, NULL, _IONBF, 0);
    alarm(60);
    net_open(arguments[5], sends);
    if (sends)
        sender(count > 6 ? arguments[6] : "");
    else
        receiver();
    /* The other end may have gone first: nothing is left to be said in order. */
    fflush(stdout);
    _exit(0);
}
