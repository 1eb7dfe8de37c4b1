// The backward of batch norm in training, into memory that the caller made.
//
// Idea        On contiguous tensors torch's op makes a gradient of the input, drops it unused and makes
//             it again. The kernel behind the op is called here with one.
// Guarantee   The same kernel on the same values: the bits of aten.native_batch_norm_backward.
// Complexity  Two passes over input and gradient.
// Gaps        Contiguous float or double on a CPU, statistics of the batch. How torch's library was built
//             decides what a dispatch looks like: where it is another way, this library does not load.
#if defined(__x86_64__)
#define HAVE_AVX2_CPU_DEFINITION
#define HAVE_AVX512_CPU_DEFINITION
#endif
#include <ATen/core/Tensor.h>
#include <ATen/native/batch_norm.h>
#include <ATen/ops/from_blob.h>

namespace {

at::Tensor tensor(void* data, at::IntArrayRef sizes, bool wide) {
    if (data == nullptr) return {};
    return at::from_blob(data, sizes, at::TensorOptions().dtype(wide ? at::kDouble : at::kFloat));
}

}  // namespace

// All of one type, contiguous; weight and its two gradients may be null. Returns 0, or 1 where torch raised.
extern "C" int tightrope_batch_norm_backward(const std::int64_t* sizes, std::int64_t dims, int wide, void* gradient,
                                             void* input, void* weight, void* mean, void* deviation, double eps,
                                             void* input_gradient, void* weight_gradient, void* bias_gradient) {
    try {
        const at::IntArrayRef all(sizes, static_cast<std::size_t>(dims)), channels(sizes + 1, 1);
        at::Tensor made = tensor(input_gradient, all, wide != 0), scale = tensor(weight_gradient, channels, wide != 0),
                   shift = tensor(bias_gradient, channels, wide != 0);
        at::native::batch_norm_cpu_backward_stub(
            at::kCPU, made, scale, shift, tensor(gradient, all, wide != 0), tensor(input, all, wide != 0),
            tensor(weight, channels, wide != 0), at::Tensor(), at::Tensor(), tensor(mean, channels, wide != 0),
            tensor(deviation, channels, wide != 0), true, eps);
        return 0;
    } catch (...) {
        return 1;
    }
}
