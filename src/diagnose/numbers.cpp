#include "diagnose/numbers.h"

#include <algorithm>
#include <cmath>

namespace shardproof::diagnose {

namespace {

constexpr std::int64_t kMostBytes = std::int64_t{2} << 30;
constexpr long double kRounding = 1e-12L;  // of the largest element

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

interpret::Options setupOptions() {
  interpret::Options options;
  options.checkpoints = true;
  return options;
}

template <class T>
std::vector<T> elementsOf(const interpret::Value<T>& whole, const Shape& low, const Shape& extent) {
  const Shape strides = interpret::stridesOf(whole.shape);
  const std::int64_t count = interpret::positionsOf(extent);
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

Numbers::Numbers(const Slice& slice, ModelValues& model, Clock::time_point end, bool inField_)
    : setup_(*slice.problem, setupOptions()),
      model_(model),
      end_(end),
      holds_(claims(), 1),
      ratios_(claims()),
      ratiosSeen_(claims(), 0) {
  for (std::size_t d = 0; d < kDraws; ++d) {
    inReals(d);
    if (!inField_ && !allHold()) return;
  }
  if (inField_) inField();
}

// `take(number of slot, value)` is called with every local tensor.
template <class T, class Take>
void Numbers::execute(ModelValuesIn<T>& model, std::size_t draw, const Take& take) {
  interpret::Limits limits;
  limits.maxBytes = kMostBytes;
  limits.end = latest(end_ - Clock::now());
  interpret::Hooks<T> hooks;
  if (model.known[draw]) {
    hooks.logical = &model.values[draw];
  } else {
    model.values[draw].assign(setup_.problem.model.graph.tensors.size(), {});
    hooks.ofModel = [&](TensorId t, const interpret::Value<T>& value) {
      interpret::Value<T> copy(model_.memory, value.shape, value.element);
      std::copy(value.data(), value.data() + value.size(), copy.writable());
      copy.masked = value.masked;
      model.values[draw][t] = std::move(copy);
    };
  }
  hooks.ofPlan = [&](Rank rank, std::int32_t slot, const interpret::Value<T>& value) {
    take(setup_.programs.slot(rank, slot), value);
  };
  interpret::Draw draws;
  draws.seed = 0x5eed + 77 * draw;
  interpret::run<T>(setup_, draws, 0, limits, {}, hooks);
  model.known[draw] = true;
}

void Numbers::inField() {
  expected_.resize(claims());
  actual_.resize(claims());
  for (std::size_t d = 0; d < kDraws; ++d)
    execute(model_.field, d, [&](std::int64_t slot, const interpret::Value<Field>& value) {
      Elements& kept = local_[slot];
      kept.shape = value.shape;
      kept.element = value.element;
      kept.of[d].assign(value.data(), value.data() + value.size());
    });
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

// A claim holds where what the model has a value at is equal, but for rounding.
void Numbers::inReals(std::size_t draw) {
  std::vector<std::vector<std::size_t>> claimsOfSlot(at(setup_.programs.slots()));
  for (std::size_t c = 0; c < claims(); ++c)
    for (const auto& part : claim(c).parts)
      claimsOfSlot[setup_.programs.slot(part.rank, part.slot)].push_back(c);
  std::vector<std::vector<long double>> sums(claims());
  execute(model_.real, draw, [&](std::int64_t slot, const interpret::Value<long double>& value) {
    for (const std::size_t c : claimsOfSlot[slot]) {
      auto& sum = sums[c];
      if (sum.empty()) sum.assign(value.data(), value.data() + value.size());
      else
        for (std::size_t i = 0; i < std::min<std::size_t>(sum.size(), at(value.size())); ++i)
          sum[i] += value.data()[i];
    }
  });
  for (std::size_t c = 0; c < claims(); ++c) {
    const TensorId tensor = setup_.problem.plan.lineage[claim(c).entry].tensor;
    const auto& whole = model_.real.values[draw][tensor];
    if (!whole || whole.element == ElementKind::kComplex) continue;
    const std::vector<long double> wanted = elementsOf(whole, claim(c).low, claim(c).extent);
    long double largest = 0;
    for (const long double x : wanted)
      if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    bool same = wanted.size() == sums[c].size();
    for (std::size_t i = 0; same && i < wanted.size(); ++i) {
      const long double a = wanted[i], b = sums[c][i];
      if (std::isnan(a) || a == b) continue;
      same = std::abs(a - b) <= kRounding * largest;  // false where either is not finite
    }
    if (same) continue;
    holds_[c] = 0;
    // The same factor at all elements that are not too small to tell.
    std::optional<long double> ratio;
    bool constant = wanted.size() == sums[c].size();
    for (std::size_t i = 0; constant && i < wanted.size(); ++i) {
      const long double a = wanted[i], b = sums[c][i];
      if (std::isnan(a) || !(std::abs(a) > 1e-6L * largest)) continue;
      if (!std::isfinite(b)) constant = false;
      else if (!ratio) ratio = b / a;
      else constant = std::abs(b / a - *ratio) <= 1e-9L * std::abs(*ratio);
    }
    if (!constant) ratio.reset();
    if (ratiosSeen_[c] && ratio && ratios_[c] &&
        std::abs(*ratio - *ratios_[c]) > 1e-9L * std::abs(*ratio))
      ratio.reset();
    if (!ratiosSeen_[c] || !ratio) ratios_[c] = ratio;
    ratiosSeen_[c] = 1;
  }
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
  const Shape strides = interpret::stridesOf(shape);
  Shape position(shape.size(), 0);
  for (std::int64_t i = 0; i < interpret::positionsOf(block.extent); ++i) {
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
  for (const std::int64_t stride : interpret::stridesOf(shape)) {
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
  execute(model_.real, 0, [&](std::int64_t slot, const interpret::Value<long double>& value) {
    if (value.element == ElementKind::kComplex || value.size() == 0) return;
    if (const auto it = slots.find(slot); it != slots.end())
      shown.locals[it->second] = blockOf(value.data(), value.shape, Shape(value.shape.size(), 0));
    const auto part = parts.find(slot);
    if (part == parts.end()) return;
    if (sum.empty()) sum.assign(at(value.size()), 0);
    for (std::size_t i = 0; i < std::min<std::size_t>(sum.size(), at(value.size())); ++i)
      sum[i] += static_cast<long double>(part->second) * value.data()[i];
  });
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
