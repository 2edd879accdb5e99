// SPDX-License-Identifier: Apache-2.0
// What the runs of model and plan share: the draw, the limits, memory, and how operators are
// executed.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

#include "executor/floating_point_guard.h"
#include "executor/given_values.h"
#include "executor/run.h"
#include "executor/run_operator.h"
#include "util/index.h"

namespace shardproof::executor {

template <class T>
struct RunState {
  RunState(const Setup& ofSetup, const Draw& ofDraw, const Limits& ofLimits, const Arrays& arrays,
           const Hooks<T>& ofHooks)
      : setup(ofSetup), draw(ofDraw), limits(ofLimits), keep(arrays), hooks(ofHooks) {
    memory.limit = limits.maxBytes;
    // Only where rounding has to be told from a difference: not in the first run.
    guard.measures = std::is_same_v<T, long double> || (!kIsField<T> && draw.moved != 0);
  }
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  // Before each operator. Throws Stopped.
  void checkLimits() {
    if (limits.cancel != nullptr && limits.cancel->load(std::memory_order_relaxed))
      throw Stopped("cancelled");
    if (limits.threads != nullptr) limits.threads->adapt();
    if ((++steps & 15) == 0 && limits.late()) throw Stopped("out of time");
  }

  const Setup& setup;
  const Draw draw;
  const Limits& limits;
  const Arrays keep;
  const Hooks<T>& hooks;
  Memory memory;
  Context context{memory};
  FloatingPointGuard<T> guard{memory, context};
  GivenValues<T> given{setup, draw, memory};
  OperatorRun<T> operators{setup.problem, memory, context, guard};
  std::uint64_t steps = 0;
};

template <class T>
Array arrayOf(const Value<T>& v) {
  Array a;
  a.shape = v.shape;
  a.element = v.element;
  a.data.resize(at(v.size()));
  std::transform(v.data(), v.data() + v.size(), a.data.begin(), [](T x) { return toDouble(x); });
  return a;
}

// The key of a dropout mask that covers a tensor of this shape.
inline std::uint64_t maskKey(const Attributes& attributes, const Shape& shape) {
  return keyOf("mask " + std::to_string(integerOf(attributes, "seed")) + " " +
               numberOf(attributes, "p").toString() + " " + text(shape));
}

}  // namespace shardproof::executor
