/* Private to ap-check: JSON Schema (draft 2020-12) as far as schemas/ uses it. */
#ifndef CHECK_SCHEMA_H
#define CHECK_SCHEMA_H

#include "doc/doc.h"

struct schemas;

/* All of schemas/, which are compiled into the tool; schemas_free. */
struct schemas *schemas_load(void);
void schemas_free(struct schemas *s);
/*
 * Whether a section's value is right by its schema. 1: there is no schema of that name;
 * -1 with the JSON pointer of the first member that is wrong, and why.
 */
int schemas_check(struct schemas *s, const char *section, json_t *value,
                  struct ap_err *err);

#endif
