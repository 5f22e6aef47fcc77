/*
 * Moments on the stream, for --profile: a kernel takes a tenth of the time of starting it
 * and waiting for it, so calls are timed by events between them. The device begins late,
 * when the host has enqueued further work, so that it never waits for the next call.
 */
#include "cuda.h"
#include "base/array.h"

#include <time.h>

/* By then as many calls are enqueued as a stream takes (1024). */
#define LATE_NANOSECONDS 15000000

static struct {
    int n, n_events, cap;
    cudaEvent_t *event;
} moments;

static void CUDART_CB wait_a_little(void *data)
{
    const struct timespec t = {.tv_nsec = LATE_NANOSECONDS};
    (void)data;
    nanosleep(&t, NULL);
}

static void begin(void)
{
    moments.n = 0;
    cuda_check(cudaLaunchHostFunc(cuda_dev.stream, wait_a_little, NULL),
               "cudaLaunchHostFunc");
}

static int moment(void)
{
    if (moments.n == moments.n_events) {
        AP_ROOM(moments.event, moments.n_events, moments.cap);
        cuda_check(
            cudaEventCreateWithFlags(&moments.event[moments.n_events], cudaEventDefault),
            "cudaEventCreateWithFlags");
        moments.n_events++;
    }
    cuda_check(cudaEventRecord(moments.event[moments.n], cuda_dev.stream),
               "cudaEventRecord");
    return moments.n++;
}

static double between(int a, int b)
{
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, moments.event[a], moments.event[b]),
               "cudaEventElapsedTime");
    return 1e-3 * (double)ms;
}

const struct backend_clock cuda_clock = {begin, moment, between};
