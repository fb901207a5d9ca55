/* Four lanes: SSE2, which every x86-64 has, NEON, or whatever the compiler makes of it. */
#define LANES 4
#define VARIANT variant_portable
#define VARIANT_NAME "portable"
#include "variant.h"
