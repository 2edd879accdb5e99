// SPDX-License-Identifier: Apache-2.0
// Calls of kernels on small arrays.
#pragma once

#include <cmath>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "executor/call.h"
#include "executor/interpret.h"

namespace shardproof::executor::testing {

inline Array array(Shape shape, std::vector<double> data,
                   ElementKind element = ElementKind::kReal) {
  return {std::move(shape), element, std::move(data)};
}

template <class T>
T fromDouble(double x) {
  if constexpr (kIsField<T>)
    return std::isfinite(x) ? fromRational<T>(Rational::fromDouble(x))
           : x < 0          ? minusInfinity<T>()
                            : undefined<T>();
  else return static_cast<T>(x);
}

// Results of a kernel; operands without shape and data are absent (`present` false).
struct Given {
  Array array;
  bool present = true;
};

template <class T>
std::vector<Array> runKernel(const std::string& name, const Attributes& attributes,
                             const std::vector<Given>& operands, std::vector<char> wanted,
                             Context* shared = nullptr) {
  static Memory memory;
  Context own{memory};
  Context& context = shared != nullptr ? *shared : own;
  std::vector<Value<T>> values(operands.size());
  std::vector<const Value<T>*> in;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].present) {
      in.push_back(nullptr);
      continue;
    }
    values[i] = Value<T>(memory, operands[i].array.shape, operands[i].array.element);
    if (values[i].size() != static_cast<std::int64_t>(operands[i].array.data.size()))
      throw std::logic_error("the test's operand does not fill its shape");
    for (std::size_t k = 0; k < operands[i].array.data.size(); ++k)
      values[i].writable()[k] = fromDouble<T>(operands[i].array.data[k]);
    in.push_back(&values[i]);
  }
  const Kernel<T> kernel = findKernel<T>(name);
  if (kernel == nullptr) throw std::logic_error("no kernel " + name);
  std::vector<Value<T>> out(std::max<std::size_t>(wanted.size(), 6));
  Call<T> call{context, attributes, in, wanted, out};
  kernel(call);
  std::vector<Array> results(wanted.size());
  for (std::size_t r = 0; r < wanted.size(); ++r) {
    if (!wanted[r]) continue;
    if (!out[r]) throw std::logic_error(name + " did not make result " + std::to_string(r));
    results[r].shape = out[r].shape;
    results[r].element = out[r].element;
    for (std::int64_t k = 0; k < out[r].size(); ++k)
      results[r].data.push_back(toDouble(out[r].data()[k]));
  }
  return results;
}

}  // namespace shardproof::executor::testing
