/* What servers of one document write down for each other. */
#include "serve/serve.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"

static const struct ap_mesh wide = {.n_axes = 2, .size = {4, 2}};
static const struct ap_mesh tall = {.n_axes = 2, .size = {2, 4}};
static const struct ap_mesh flat = {.n_axes = 1, .size = {8}};

/* As another process does. */
static void write_down(struct serve_cache *shelf, int item)
{
    struct serve_written *w = serve_cache_room(shelf, sizeof *w);
    *w = (struct serve_written){.row = 3, .mesh = wide, .exists = true};
    serve_cache_end(shelf, item, w);
}

int main(void)
{
    struct serve_cache *shelf = serve_cache_new(10, 20);
    bool begun = true;
    int status = -1;

    CHECK(shelf, "there is one");
    if (!shelf)
        return tap_done();
    CHECK(!serve_cache_find(shelf, 3, &wide, &begun) && !begun, "nothing is on it");
    int item = serve_cache_begin(shelf, 3, &wide);
    CHECK(!serve_cache_find(shelf, 3, &tall, &begun) && begun, "somebody has begun");
    CHECK(!serve_cache_find(shelf, 2, &wide, &begun) && !begun, "with this rule alone");
    CHECK(!serve_cache_find(shelf, 3, &flat, &begun) && !begun,
          "on meshes of as many axes");
    pid_t pid = fork();
    if (pid == 0) {
        write_down(shelf, item);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    const struct serve_written *w = serve_cache_find(shelf, 3, &tall, &begun);
    CHECK(status == 0 && w && w->exists && w->mesh.size[0] == 4,
          "what another process writes down is read, on meshes that are alike");
    CHECK(!serve_cache_room(shelf, (size_t)1 << 40), "room ends");
    CHECK(!serve_cache_room(shelf, 1), "and stays at an end");
    int more = 0;
    while (more < 10000 && serve_cache_begin(shelf, 1, &wide) >= 0)
        more++;
    CHECK(more < 10000 && serve_cache_find(shelf, 3, &wide, &begun) == w,
          "so do items; what is there stays");
    serve_cache_free(shelf);
    CHECK(!serve_cache_find(NULL, 3, &wide, &begun) && !begun &&
              serve_cache_begin(NULL, 3, &wide) == -1,
          "without a shelf nobody shares");
    return tap_done();
}
