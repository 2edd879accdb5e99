#include "diagnose/numbers.h"

#include <algorithm>

namespace shardproof::diagnose {

namespace {

constexpr std::int64_t kMostBytes = std::int64_t{2} << 30;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

interpret::Options setupOptions() {
  interpret::Options options;
  options.checkpoints = true;
  return options;
}

}  // namespace

Elements boxOf(const ModelValues& model, std::int32_t tensor, const Shape& low,
               const Shape& extent) {
  const auto& whole = model.values[0][at(tensor)];
  Elements box;
  box.shape = extent;
  box.element = whole.element;
  if (!whole || whole.element == ElementKind::kComplex) return box;
  const Shape strides = interpret::stridesOf(whole.shape);
  const std::int64_t count = interpret::positionsOf(extent);
  for (std::size_t d = 0; d < kDraws; ++d) {
    const Field* from = model.values[d][at(tensor)].data();
    box.of[d].reserve(at(count));
    Shape position(extent.size(), 0);
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t offset = 0;
      for (std::size_t k = 0; k < extent.size(); ++k) offset += (low[k] + position[k]) * strides[k];
      box.of[d].push_back(from[offset]);
      for (std::size_t k = extent.size(); k-- > 0;) {
        if (++position[k] < extent[k]) break;
        position[k] = 0;
      }
    }
  }
  return box;
}

Numbers::Numbers(const Slice& slice, ModelValues& model, Clock::time_point end, bool keepAll)
    : setup_(*slice.problem, setupOptions()), model_(model), keepAll_(keepAll) {
  expected_.resize(claims());
  actual_.resize(claims());
  interpret::Limits limits;
  limits.maxBytes = kMostBytes;
  limits.end = end;
  std::vector<std::vector<std::size_t>> claimsOfSlot(at(setup_.programs.slots()));
  for (std::size_t c = 0; c < claims(); ++c)
    for (const auto& part : claim(c).parts) {
      auto& of = claimsOfSlot[at(setup_.programs.slot(part.rank, part.slot))];
      of.push_back(c);
    }
  for (std::size_t d = 0; d < kDraws; ++d) {
    interpret::Hooks<Field> hooks;
    if (model.known) {
      hooks.logical = &model.values[d];
    } else {
      model.values[d].resize(setup_.problem.model.graph.tensors.size());
      hooks.ofModel = [&](std::int32_t t, const interpret::Value<Field>& value) {
        interpret::Value<Field> copy(model.memory, value.shape, value.element);
        std::copy(value.data(), value.data() + value.size(), copy.writable());
        copy.masked = value.masked;
        copy.unknown = value.unknown;
        model.values[d][at(t)] = std::move(copy);
      };
    }
    hooks.ofPlan = [&](std::int64_t rank, std::int32_t slot, const interpret::Value<Field>& value) {
      const std::int64_t number = setup_.programs.slot(rank, slot);
      for (const std::size_t c : claimsOfSlot[at(number)]) {
        Elements& sum = actual_[c];
        sum.shape = value.shape;
        sum.element = value.element;
        if (sum.of[d].empty()) sum.of[d].assign(value.data(), value.data() + value.size());
        else
          for (std::size_t i = 0; i < sum.of[d].size(); ++i) sum.of[d][i] += value.data()[i];
      }
      if (!keepAll_) return;
      Elements& kept = local_[number];
      kept.shape = value.shape;
      kept.element = value.element;
      kept.of[d].assign(value.data(), value.data() + value.size());
    };
    interpret::Draw draw;
    draw.seed = 0x5eed + 77 * d;
    interpret::run<Field>(setup_, draw, 0, limits, {}, hooks);
    takeClaims(d);
  }
  model.known = true;
}

void Numbers::takeClaims(std::size_t draw) {
  if (draw + 1 != kDraws) return;
  for (std::size_t c = 0; c < claims(); ++c) {
    const std::int32_t tensor = setup_.problem.plan.lineage[at(claim(c).entry)].tensor;
    expected_[c] = boxOf(model_, tensor, claim(c).low, claim(c).extent);
  }
}

bool Numbers::allHold() const {
  for (std::size_t c = 0; c < claims(); ++c)
    if (!holds(c)) return false;
  return true;
}

const Elements& Numbers::local(std::int64_t rank, std::int32_t slot) const {
  static const Elements none;
  const auto it = local_.find(setup_.programs.slot(rank, slot));
  return it == local_.end() ? none : it->second;
}

const Elements& Numbers::logical(std::int32_t tensor) const {
  const auto [it, added] = logical_.emplace(tensor, Elements{});
  if (added && model_.values[0][at(tensor)])
    it->second = boxOf(model_, tensor, Shape(model_.values[0][at(tensor)].shape.size(), 0),
                       model_.values[0][at(tensor)].shape);
  return it->second;
}

}  // namespace shardproof::diagnose
