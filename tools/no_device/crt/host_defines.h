/* The names that driver_types.h of a CUDA toolkit expects of its compiler's headers, which pip packages of CUDA lack. */
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __host__
#define CUDARTAPI
#define __CUDA_DEPRECATED
#define __inline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
