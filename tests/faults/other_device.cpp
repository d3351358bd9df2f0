// A device of torch whose memory the process cannot read at the addresses of its tensors, as that of a GPU.
//
// Each block lies in a file in memory that is mapped twice: at the addresses that tensors have without any access, and
// readable for this file alone. Operators run on the CPU: torch copies their operands there and their results back.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/unfold_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <atomic>

namespace {

constexpr size_t ARENA = size_t(1) << 34;
char* hidden = nullptr;
char* readable = nullptr;
std::atomic<size_t> used{0};

void open_arena() {
  int file = memfd_create("other_device", 0);
  TORCH_CHECK(file >= 0 && !ftruncate(file, ARENA));
  hidden = static_cast<char*>(mmap(nullptr, ARENA, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0));
  readable = static_cast<char*>(mmap(nullptr, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0));
  TORCH_CHECK(hidden != MAP_FAILED && readable != MAP_FAILED);
}

struct Allocator final : c10::Allocator {
  at::DataPtr allocate(size_t bytes) override {
    static std::once_flag once;
    std::call_once(once, open_arena);
    const c10::Device device(c10::DeviceType::PrivateUse1, 0);
    if (!bytes) return {nullptr, nullptr, [](void*) {}, device};
    size_t at = used.fetch_add((bytes + 63) / 64 * 64);
    TORCH_CHECK(at + bytes <= ARENA, "the arena is full");
    return {hidden + at, hidden + at, [](void*) {}, device};
  }
  at::DeleterFnPtr raw_deleter() const override { return [](void*) {}; }
  void copy_data(void* to, const void* from, size_t count) const override {
    auto place = [](const void* p) { return readable + (static_cast<const char*>(p) - hidden); };
    memcpy(place(to), place(from), count);
  }
};
Allocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {c10::DeviceType::PrivateUse1, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getNewStream(c10::Device device, int = 0) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return nullptr; }
  bool isPinnedPtr(const void*) const override { return false; }
};
[[maybe_unused]] const bool registered = (at::RegisterPrivateUse1HooksInterface(new Hooks()), true);

at::Tensor host(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  auto* data = static_cast<char*>(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
  auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  auto flat = at::from_blob(data ? readable + (data - hidden) : nullptr, {bytes}, at::TensorOptions(at::kByte));
  at::AutoDispatchBelowADInplaceOrView guard;
  auto typed = at::empty({0}, tensor.options().device(at::kCPU));
  return typed.set_(flat.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

const c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator, KEYS, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator,
                                           KEYS, c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool) {
  host(dst).copy_(host(self));
  return dst;
}

at::Scalar local_scalar(const at::Tensor& self) { return host(self).item(); }

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* impl = self.unsafeGetTensorImpl();
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  size_t bytes = (c10::multiply_integers(sizes) + impl->storage_offset()) * impl->itemsize();
  if (storage->nbytes() < bytes) {
    auto fresh = allocator.allocate(bytes);
    if (storage->nbytes()) allocator.copy_data(fresh.get(), storage->_mutable_data_ptr_no_checks().get(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(fresh));
    storage->set_nbytes(bytes);
  }
  impl->set_sizes_contiguous(sizes);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::cpu::set_(self, std::move(source), offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  int64_t count = source.nbytes() / self.itemsize();
  return at::cpu::set_(self, std::move(source), 0, {count}, {1});
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  std::optional<int64_t> at;
  if (offset) at = offset->expect_int();
  return at::cpu::as_strided(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), at);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

// As on a GPU, operands of several devices are an error, except for numbers and what indexes.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& name = op.schema().name();
  const bool may_mix = name.find("index") != std::string::npos || name.find("copy") != std::string::npos;
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    auto check = [&](const at::Tensor& tensor) {
      TORCH_CHECK(may_mix || !tensor.defined() || !tensor.device().is_cpu() || !tensor.dim(),
                  "Expected all tensors to be on the same device, ", name, " got one on the CPU");
    };
    if (value.isTensor()) check(value.toTensor());
    if (value.isTensorList())
      for (const auto& tensor : value.toTensorVector()) check(tensor);
  }
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", [](const at::Tensor& self, const at::Tensor& dst) {
    if (!dst.sizes().equals(self.sizes())) dst.resize_(self.sizes());
    return copy_from(self, dst, false);
  });
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", at::native::unfold);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace
