// SPDX-License-Identifier: Apache-2.0
// operator new that throws std::bad_alloc, as the language has it. Debian's mimalloc, which takes
// the place of malloc, brings one that ends the process when there is no memory: a worker's task
// would be "killed by SIGABRT", and the program would end without saying why. Only `new` is here:
// whatever `delete` there is gives back what malloc gave.
#include <cstdlib>
#include <new>

namespace {

void* allocate(std::size_t size) noexcept { return std::malloc(size == 0 ? 1 : size); }

void* allocate(std::size_t size, std::align_val_t alignment) noexcept {
  const auto a = static_cast<std::size_t>(alignment);
  const std::size_t whole = (size + a - 1) / a * a;  // as aligned_alloc wants it
  return whole < size ? nullptr : std::aligned_alloc(a, whole == 0 ? a : whole);
}

void* orThrow(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return orThrow(allocate(size)); }
void* operator new[](std::size_t size) { return orThrow(allocate(size)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return orThrow(allocate(size, alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return orThrow(allocate(size, alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(size, alignment);
}
void* operator new[](std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(size, alignment);
}
