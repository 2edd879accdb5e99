// SPDX-License-Identifier: Apache-2.0
// Values of constants and of the model's inputs: those of a file, those that are known, or drawn.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "executor/draw.h"
#include "executor/scalar.h"
#include "executor/setup.h"
#include "executor/value.h"

namespace shardproof::executor {

template <class T>
class GivenValues {
 public:
  GivenValues(const Setup& setup, const Draw& draw, Memory& memory)
      : setup_(setup), draw_(draw), memory_(memory) {}

  Value<T> constant(const Graph& graph, const Tensor& tensor) {
    const ConstantValue& value = *graph.constants[tensor.constant];
    Value<T> v(memory_, tensor.shape, tensor.element);
    T* to = v.writable();
    if (value.fill) std::fill(to, to + v.size(), fromRational<T>(value.elements.at(0)));
    else
      std::transform(value.elements.begin(), value.elements.end(), to,
                     [](const Rational& r) { return fromRational<T>(r); });
    return v;
  }

  Value<T> input(TensorId t, const Tensor& tensor) {
    const std::string& name = setup_.problem.names.text(tensor.name);
    const std::uint64_t key = keyOf(name);
    if (setup_.given != nullptr) {
      if (const auto it = setup_.given->find(name); it != setup_.given->end()) {
        Value<T> v(memory_, tensor.shape, tensor.element);
        T* to = v.writable();
        for (std::int64_t i = 0; i < v.size(); ++i) {
          const double x = it->second.data[i];
          if constexpr (kIsField<T>)
            to[i] = std::isfinite(x) ? fromRational<T>(Rational::fromDouble(x))
                    : x < 0          ? minusInfinity<T>()
                                     : undefined<T>();
          else
            to[i] = static_cast<T>(
                tensor.element == ElementKind::kInteger ? x : x * moveOf(key, i, draw_));
          v.masked = v.masked || (std::isinf(x) && x < 0);
        }
        return v;
      }
    }
    if (tensor.known) return knownInput(tensor, key);
    return drawn<T>(memory_,
                    {tensor.shape, tensor.element, setup_.uses.ofModel(t),
                     tensor.kind == TensorKind::kParameter, key},
                    draw_);
  }

  // An input of which more is known than its shape: the numbers that it stands for, those of an
  // integer input, or integers in certain stretches.
  Value<T> knownInput(const Tensor& tensor, std::uint64_t key) {
    const KnownInput& known = *tensor.known;
    Value<T> v(memory_, tensor.shape, tensor.element);
    T* to = v.writable();
    switch (known.kind) {
      case KnownInput::Kind::kNumbers:
        for (std::int64_t i = 0; i < v.size(); ++i) {
          // No residue is such a number.
          if constexpr (kIsField<T>) to[i] = undefined<T>();
          else to[i] = known.numbers.empty() ? undefined<T>() : static_cast<T>(known.numbers[i]);
        }
        break;
      case KnownInput::Kind::kNumberOf: {
        const Value<T> of = input(known.tensor, setup_.problem.model.graph.tensors[known.tensor]);
        for (std::int64_t i = 0; i < v.size(); ++i) {
          const std::int64_t n = toIndex(of.data()[i]);
          to[i] = n == kNoIndex ? undefined<T>() : fromInteger<T>(n + known.plus);
        }
        break;
      }
      case KnownInput::Kind::kWithin: {
        constexpr std::int64_t kMost = 1 << 20;  // of one stretch
        std::int64_t count = 0;
        for (const auto& [low, high] : known.within) count += std::min(high - low, kMost);
        const Use use{true, 0, count, false};
        const Value<T> places =
            drawn<T>(memory_, {tensor.shape, tensor.element, use, false, key}, draw_);
        for (std::int64_t i = 0; i < v.size(); ++i) {
          std::int64_t place = toIndex(places.data()[i]);
          for (const auto& [low, high] : known.within) {
            const std::int64_t most = std::min(high - low, kMost);
            if (place < most) {
              to[i] = fromInteger<T>(low + place);
              break;
            }
            place -= most;
          }
        }
        break;
      }
    }
    return v;
  }

 private:
  const Setup& setup_;
  const Draw& draw_;
  Memory& memory_;
};

}  // namespace shardproof::executor
