/* The messages between the watchdog's ranks and hub; both are the same program. */
#ifndef EXEC_WATCH_WIRE_H
#define EXEC_WATCH_WIRE_H

#include <stdint.h>

enum {
    WIRE_PERIOD_MS = 250,   /* between two reports */
    WIRE_CONNECT_MS = 5000, /* for one address */
    WIRE_ADDRESSES = 16,    /* of a host, at most */
    WIRE_GRACE_MS = 1000,   /* time in which mpirun sees which rank died first, and how */
    WIRE_LISTEN = 128
};
/* A process that has not run for this many seconds was suspended: not its fault. */
#define WIRE_SUSPENDED 2.0
/* Share of a period in which a rank that waits for nobody uses a processor. */
#define WIRE_BUSY 0.05

/* First byte of a rank's report; WIRE_BEAT and WIRE_END are also what the hub sends. */
enum {
    WIRE_HELLO = 'h',
    WIRE_BEAT = 'b',
    WIRE_BYE = 'q',  /* a farewell */
    WIRE_SAID = 's', /* of a rank that has printed why it ends */
    WIRE_END = 'x'
};

struct wire_beat {
    int32_t kind, rank, pid;
    int32_t by;     /* of WIRE_BYE: the signal that ends the rank, 0: it ends in order; of
                       WIRE_SAID: the exit code */
    uint64_t token; /* the job's, of a greeting */
    uint64_t progress; /* changes while the rank makes progress */
    int64_t step;
    char doing[40];
    char host[64];
};

/* A report that is there as a whole: 1; 0: not yet; -1: the connection is lost. */
int wire_receive(int fd, struct wire_beat *beat);
/* Does not block, and is not inherited. */
void wire_prepare(int fd);

#endif
