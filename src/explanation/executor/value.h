// SPDX-License-Identifier: Apache-2.0
// The arrays that the executor computes with: whole, row-major, in any of its three arithmetics. A
// buffer is written once and then shared, so that what only looks at another shape of the same
// elements (views, copies, replicas of a parameter) costs nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::executor {

// The plan (or a caller's inputs) cannot be run: operands that do not fit, and the like.
class Misfit : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Something that is well formed but has no meaning that the executor knows: what depends on it is
// unknown, not wrong.
class NoMeaning : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Arrays that are alive would exceed the limit.
class TooLarge : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Bytes of all buffers that are alive. One thread allocates; the counters may be read by others.
struct Memory {
  std::int64_t alive = 0, peak = 0, limit = 0;  // limit 0: none
  void take(std::int64_t bytes) {
    if (limit != 0 && alive + bytes > limit)
      throw TooLarge("arrays of more than " + std::to_string(limit >> 20) +
                     " MB would be alive at once");
    alive += bytes;
    if (alive > peak) peak = alive;
  }
};

template <class T>
class Buffer {
 public:
  static_assert(std::is_trivially_copyable_v<T>);
  Buffer(Memory& memory, std::int64_t size) : memory_(memory), size_(size) {
    memory_.take(bytes());
    data_ =
        static_cast<T*>(std::aligned_alloc(64, static_cast<std::size_t>((bytes() + 63) / 64 * 64)));
    if (data_ == nullptr) {
      memory_.alive -= bytes();
      throw std::bad_alloc();
    }
  }
  ~Buffer() {
    std::free(data_);
    memory_.alive -= bytes();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() { return data_; }
  const T* data() const { return data_; }
  std::int64_t size() const { return size_; }

 private:
  std::int64_t bytes() const {
    return (size_ > 0 ? size_ : 1) * static_cast<std::int64_t>(sizeof(T));
  }
  Memory& memory_;
  std::int64_t size_;
  T* data_ = nullptr;
};

inline std::int64_t positionsOf(const Shape& shape) {
  std::int64_t n = 1;
  for (const std::int64_t s : shape) n *= s;
  return n;
}

// Two numbers for a complex element, real part first.
inline std::int64_t planesOf(ElementKind element) {
  return element == ElementKind::kComplex ? 2 : 1;
}

template <class T>
struct Value {
  Shape shape;
  ElementKind element = ElementKind::kReal;
  std::shared_ptr<Buffer<T>> buffer;
  std::shared_ptr<const std::string>
      unknown;          // why the elements mean nothing; nullptr: they are what the definition says
  bool masked = false;  // minus infinity may be among the elements
  // What was computed with: the largest number among the elements, what they were computed from,
  // and the products on the way. Rounding is a part of this, whatever cancelled. 0: not measured.
  double reach = 0;

  Value() = default;
  Value(Memory& memory, Shape s, ElementKind e = ElementKind::kReal)
      : shape(std::move(s)),
        element(e),
        buffer(std::make_shared<Buffer<T>>(memory, positionsOf(shape) * planesOf(e))) {}
  explicit operator bool() const { return buffer != nullptr; }
  std::int64_t positions() const { return positionsOf(shape); }
  std::int64_t planes() const { return planesOf(element); }
  std::int64_t size() const { return buffer->size(); }
  const T* data() const { return buffer->data(); }
  T* writable() {
    return buffer->data();
  }                              // only by who made the buffer, before anyone else sees it
  Value as(Shape other) const {  // the same elements in another shape of as many
    Value v = *this;
    v.shape = std::move(other);
    return v;
  }
};

inline std::string text(const Shape& shape) {
  std::string s = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    s += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

// Row-major strides in positions.
inline Shape stridesOf(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// From so many elements on a loop is worth several threads.
constexpr std::int64_t kParallelFrom = std::int64_t{1} << 16;

}  // namespace shardproof::executor
