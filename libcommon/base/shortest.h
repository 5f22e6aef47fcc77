/* Decimal text of numbers without the C library's exact, and slow, arithmetic. */
#ifndef AP_SHORTEST_H
#define AP_SHORTEST_H

#include "base/base.h"

#define AP_SHORTEST_TEXT 40

/*
 * What "%.15g", "%.16g" or "%.17g" print, the first of them that reads back equal. false:
 * it is not sure which, or how; text is not filled.
 */
bool ap_shortest(double v, char text[AP_SHORTEST_TEXT]);

#endif
