/* The growth of a rank's memory. */
#ifndef EXEC_MEMORY_H
#define EXEC_MEMORY_H

#include <stdint.h>

/* Resident bytes of this process, whose highest mark starts anew; -1: the system does not
 * say. */
int64_t memory_start(void);
/* By how much they have been above `start` at most; -1: unknown. */
int64_t memory_grown(int64_t start);

#endif
