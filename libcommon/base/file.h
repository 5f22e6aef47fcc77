/* Files and standard input, read whole; gzip is unpacked. */
#ifndef AP_FILE_H
#define AP_FILE_H

#include "base/base.h"

/* Reads a whole file or "-" (stdin); gzip is unpacked if gunzip is true, unless
 * it unpacks to more than text does: 64 MiB and 200 times its size. Owner: arena. */
int ap_read_file(struct ap_arena *arena, const char *path, bool gunzip, char **text,
                 size_t *len, struct ap_err *err);
/* Whether two paths lead to the same file, which need not exist yet; false for "-". */
bool ap_same_file(const char *a, const char *b);
/*
 * The message of gzerror, without the name that zlib gives to a descriptor: "<fd:3>: ".
 */
const char *ap_gzip_why(const char *why);

#endif
