/* Everything that is compiled once per instruction set. The including file says LANES, VARIANT (the
 * name of its table) and, where it may, USE_AVX2 or USE_AVX512. */
#include <stdlib.h>

#include "kernels.h"
#include "simd.h"
#include "transpose.h"
#include "rows.h"

const Variant VARIANT = {VARIANT_NAME, rows_forward, rows_backward};
