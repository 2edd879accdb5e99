// SPDX-License-Identifier: Apache-2.0
#include "diagnose/numbers.h"

#include <algorithm>
#include <cmath>

#include "executor/call.h"
#include "util/index.h"

namespace shardproof::diagnose {

namespace {

constexpr std::int64_t kMostBytes = std::int64_t{2} << 30;
constexpr long double kRounding = 1e-12L;  // of the largest element
constexpr long double kTooSmall = 1e-6L;   // of the largest element: to tell a factor
constexpr long double kSameRatio = 1e-9L;

executor::Options setupOptions() {
  executor::Options options;
  options.cutPoints = true;
  return options;
}

std::int64_t offsetOf(const Shape& shape, const Shape& position) {
  const Shape strides = executor::stridesOf(shape);
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < strides.size(); ++d) offset += position[d] * strides[d];
  return offset;
}

template <class T>
std::vector<T> elementsOf(const executor::Value<T>& whole, const Shape& low, const Shape& extent) {
  const Shape strides = executor::stridesOf(whole.shape);
  const std::int64_t count = executor::positionsOf(extent);
  std::vector<T> elements;
  elements.reserve(at(count));
  Shape position(extent.size(), 0);
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t offset = 0;
    for (std::size_t k = 0; k < extent.size(); ++k) offset += (low[k] + position[k]) * strides[k];
    elements.push_back(whole.data()[offset]);
    for (std::size_t k = extent.size(); k-- > 0;) {
      if (++position[k] < extent[k]) break;
      position[k] = 0;
    }
  }
  return elements;
}

}  // namespace

Elements boxOf(const ModelValues& model, TensorId tensor, const Shape& low, const Shape& extent) {
  const auto& whole = model.field.values[0][tensor];
  Elements box;
  box.shape = extent;
  box.element = whole.element;
  if (!whole || whole.element == ElementKind::kComplex) return box;
  for (std::size_t d = 0; d < kDraws; ++d)
    box.of[d] = elementsOf(model.field.values[d][tensor], low, extent);
  return box;
}

Numbers::Numbers(const Slice& slice, ModelValues& model, ProcessorClock::time_point end, Look look)
    : setup_(*slice.problem, setupOptions()),
      model_(model),
      end_(end),
      holds_(claims(), 1),
      ratios_(claims()),
      ratiosSeen_(claims(), 0) {
  const bool field = look == Look::kField || look == Look::kRealsAndField;
  const std::size_t draws = look == Look::kField ? 0 : look == Look::kRealsAtOneDraw ? 1 : kDraws;
  for (std::size_t d = 0; d < draws; ++d) {
    inReals(d);
    if (!field && !allHold()) return;
  }
  if (field) inField();
}

template <class T>
void Numbers::execute(ModelValuesIn<T>& model, std::size_t draw, executor::Hooks<T> hooks) {
  executor::Limits limits;
  limits.maxBytes = kMostBytes;
  limits.end = latest(end_ - ProcessorClock::now());
  if (model.known[draw]) {
    hooks.logical = &model.values[draw];
  } else {
    model.values[draw].assign(setup_.problem.model.graph.tensors.size(), {});
    hooks.ofModel = [&](TensorId t, const executor::Value<T>& value) {
      executor::Value<T> copy(model_.memory, value.shape, value.element);
      std::copy(value.data(), value.data() + value.size(), copy.writable());
      copy.masked = value.masked;
      model.values[draw][t] = std::move(copy);
    };
  }
  executor::Draw draws;
  draws.seed = 0x5eed + 77 * (model_.firstDraw + draw);
  executor::run<T>(setup_, draws, 0, limits, {}, hooks);
  model.known[draw] = true;
}

void Numbers::inField() {
  expected_.resize(claims());
  actual_.resize(claims());
  for (std::size_t d = 0; d < kDraws; ++d) {
    executor::Hooks<Field> hooks;
    hooks.ofPlan = [&](Rank rank, std::int32_t slot, const executor::Value<Field>& value) {
      Elements& kept = local_[setup_.programs.slot(rank, slot)];
      kept.shape = value.shape;
      kept.element = value.element;
      kept.of[d].assign(value.data(), value.data() + value.size());
    };
    // All is compared below.
    hooks.ofClaim = [](std::size_t, const executor::Value<Field>&, const executor::Value<Field>&) {
    };
    execute(model_.field, d, std::move(hooks));
  }
  for (std::size_t c = 0; c < claims(); ++c) {
    const TensorId tensor = setup_.problem.plan.lineage[claim(c).entry].tensor;
    expected_[c] = boxOf(model_, tensor, claim(c).low, claim(c).extent);
    Elements& sum = actual_[c];
    for (const auto& part : claim(c).parts) {
      const Elements& x = local(part.rank, part.slot);
      if (!sum.known()) {
        sum = x;
        continue;
      }
      for (std::size_t d = 0; d < kDraws; ++d)
        for (std::size_t i = 0; i < std::min(sum.of[d].size(), x.of[d].size()); ++i)
          sum.of[d][i] += x.of[d][i];
    }
    holds_[c] = holds_[c] != 0 || expected_[c] == sum;
  }
}

// Compared as soon as all parts are there, so that nothing but what the run itself needs is kept.
void Numbers::inReals(std::size_t draw) {
  executor::Hooks<long double> hooks;
  hooks.ofClaim = [&](std::size_t c, const executor::Value<long double>& logical,
                      const executor::Value<long double>& local) {
    if (logical && logical.element != ElementKind::kComplex) compareReals(c, logical, local);
  };
  execute(model_.real, draw, std::move(hooks));
}

// A claim holds where what the model has a value at is equal, but for rounding.
void Numbers::compareReals(std::size_t c, const executor::Value<long double>& logical,
                           const executor::Value<long double>& local) {
  const executor::Walk walk(claim(c).extent, executor::stridesOf(logical.shape),
                            Shape(claim(c).extent.size(), 0));
  const long double* const box = logical.data() + offsetOf(logical.shape, claim(c).low);
  const long double* const found = local.data();
  // f(a, b) of all elements, until it is false.
  const auto all = [&](const auto& f) {
    for (std::int64_t run = 0; run < walk.runs; ++run) {
      const long double* const a = box + walk.start(run).first;
      const long double* const b = found + run * walk.length;
      for (std::int64_t i = 0; i < walk.length; ++i)
        if (!f(a[i * walk.strideA], b[i])) return false;
    }
    return true;
  };
  const bool fits = walk.runs * walk.length == local.size();
  if (fits && all([](long double a, long double b) { return a == b || std::isnan(a); })) return;
  long double largest = 0;
  if (fits)
    all([&](long double a, long double) {
      if (std::isfinite(a)) largest = std::max(largest, std::abs(a));
      return true;
    });
  // The last is false where either is not finite.
  if (fits && all([&](long double a, long double b) {
        return std::isnan(a) || a == b || std::abs(a - b) <= kRounding * largest;
      }))
    return;
  holds_[c] = 0;
  // The same factor at all elements that are not too small to tell.
  std::optional<long double> ratio;
  const bool constant = fits && all([&](long double a, long double b) {
                          if (std::isnan(a) || !(std::abs(a) > kTooSmall * largest)) return true;
                          if (!std::isfinite(b)) return false;
                          if (!ratio) ratio = b / a;
                          return std::abs(b / a - *ratio) <= kSameRatio * std::abs(*ratio);
                        });
  if (!constant) ratio.reset();
  if (ratiosSeen_[c] && ratio && ratios_[c] &&
      std::abs(*ratio - *ratios_[c]) > kSameRatio * std::abs(*ratio))
    ratio.reset();
  if (!ratiosSeen_[c] || !ratio) ratios_[c] = ratio;
  ratiosSeen_[c] = 1;
}

namespace {

constexpr std::int64_t kMostShown = 8;  // rows and columns

// `around`: a position that the block has to hold.
template <class T>
Cause::Block blockOf(const T* data, const Shape& shape, const Shape& around) {
  Cause::Block block;
  block.full = shape;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::int64_t most = d + 2 >= shape.size() ? kMostShown : 1;
    block.extent.push_back(std::min(most, shape[d]));
    block.low.push_back(std::min(around[d] / most * most, shape[d] - block.extent[d]));
  }
  const Shape strides = executor::stridesOf(shape);
  Shape position(shape.size(), 0);
  for (std::int64_t i = 0; i < executor::positionsOf(block.extent); ++i) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < shape.size(); ++d)
      offset += (block.low[d] + position[d]) * strides[d];
    block.values.push_back(static_cast<double>(data[offset]));
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++position[d] < block.extent[d]) break;
      position[d] = 0;
    }
  }
  return block;
}

Shape positionIn(const Shape& shape, std::size_t index) {
  Shape position;
  auto rest = static_cast<std::int64_t>(index);
  for (const std::int64_t stride : executor::stridesOf(shape)) {
    position.push_back(rest / stride);
    rest %= stride;
  }
  return position;
}

}  // namespace

Shown Numbers::show(std::size_t c) {
  Shown shown;
  const Rank rank = claim(c).parts.front().rank;
  const auto& layout = setup_.programs.layout(rank);
  std::map<std::int64_t, std::int32_t> slots;  // over all ranks, of this one
  for (std::int32_t s = 0; s < layout.slots(); ++s) slots[setup_.programs.slot(rank, s)] = s;
  std::map<std::int64_t, std::size_t> parts;
  for (const auto& part : claim(c).parts) ++parts[setup_.programs.slot(part.rank, part.slot)];
  std::vector<long double> sum;
  executor::Hooks<long double> hooks;
  hooks.ofPlan = [&](Rank of, std::int32_t own, const executor::Value<long double>& value) {
    const std::int64_t slot = setup_.programs.slot(of, own);
    if (value.element == ElementKind::kComplex || value.size() == 0) return;
    if (const auto it = slots.find(slot); it != slots.end())
      shown.locals[it->second] = blockOf(value.data(), value.shape, Shape(value.shape.size(), 0));
    const auto part = parts.find(slot);
    if (part == parts.end()) return;
    if (sum.empty()) sum.assign(at(value.size()), 0);
    for (std::size_t i = 0; i < std::min<std::size_t>(sum.size(), at(value.size())); ++i)
      sum[i] += static_cast<long double>(part->second) * value.data()[i];
  };
  hooks.ofClaim = [](std::size_t, const executor::Value<long double>&,
                     const executor::Value<long double>&) {};
  execute(model_.real, 0, std::move(hooks));
  const std::int32_t tensor = setup_.problem.plan.lineage[at(claim(c).entry)].tensor;
  const auto& whole = model_.real.values[0][at(tensor)];
  if (!whole || whole.element == ElementKind::kComplex) return shown;
  const std::vector<long double> wanted = elementsOf(whole, claim(c).low, claim(c).extent);
  if (wanted.size() != sum.size()) return shown;
  std::size_t first = 0;
  while (first < wanted.size() &&
         std::abs(wanted[first] - sum[first]) <= 1e-9L * std::abs(wanted[first]))
    ++first;
  if (first == wanted.size()) first = 0;
  const Shape around = positionIn(claim(c).extent, first);
  shown.expected = blockOf(wanted.data(), claim(c).extent, around);
  shown.actual = blockOf(sum.data(), claim(c).extent, around);
  return shown;
}

bool Numbers::allHold() const {
  for (std::size_t c = 0; c < claims(); ++c)
    if (!holds(c)) return false;
  return true;
}

bool Numbers::allHoldInField() const {
  for (std::size_t c = 0; c < claims(); ++c)
    if (expected_.empty() || !(expected_[c] == actual_[c])) return false;
  return true;
}

const Elements& Numbers::local(Rank rank, std::int32_t slot) const {
  static const Elements none;
  const auto it = local_.find(setup_.programs.slot(rank, slot));
  return it == local_.end() ? none : it->second;
}

const Elements& Numbers::logical(TensorId tensor) const {
  const auto [it, added] = logical_.emplace(tensor, Elements{});
  if (added && model_.field.values[0][tensor])
    it->second = boxOf(model_, tensor, Shape(model_.field.values[0][tensor].shape.size(), 0),
                       model_.field.values[0][tensor].shape);
  return it->second;
}

}  // namespace shardproof::diagnose
