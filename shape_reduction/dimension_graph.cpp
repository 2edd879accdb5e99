// SPDX-License-Identifier: Apache-2.0
#include "shape_reduction/dimension_graph.h"
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include "ops/collectives.h"
#include "ops/registry.h"
#include "shape_reduction/reduction.h"
#include "shardproof/error.h"

#include "shape_reduction/dimension_builder.h"

namespace shardproof {

DimensionGraph DimensionGraphBuilder::run() {
  for (const StageTensor& tensor : stage_.tensors) {
    std::vector<std::int32_t> dims;
    for (const std::int64_t n : tensor.info.shape) dims.push_back(newDim(n));
    dimVars_.push_back(std::move(dims));
    valueVars_.push_back(tensor.info.element == ElementKind::kInteger ? newDim(kUnboundedValues)
                                                                      : -1);
    if (tensor.origin == Origin::kConstant) {
      keepUnlessFill(tensor, dimVars_.back());
      if (valueVars_.back() >= 0) singleOutValues(tensor, valueVars_.back());
    }
  }
  if (knownInputs_) relateKnownInputs();
  for (const StageNode& node : stage_.nodes) relateNode(node);
  for (const Equation& e : stage_.assumptions) relateEquation(e);
  for (const Equation& e : stage_.claims) relateEquation(e);
  group();
  factorize();
  layLines();
  return std::move(graph_);
}

void DimensionGraphBuilder::keepUnlessFill(const StageTensor& tensor,
                                           const std::vector<std::int32_t>& dims) {
  if (tensor.constant->fill) return;
  for (const std::int32_t d : dims) flags_[d].keep = true;
}

void DimensionGraphBuilder::relateKnownInputs() {
  for (const StageTensorId t : firstIds<StageTensorId>(stage_.tensors.size())) {
    const StageTensor& tensor = stage_.tensors[t];
    if (!tensor.known) continue;
    if (tensor.known->kind == KnownInput::Kind::kNumbers) {
      for (const std::int32_t d : dimVars_[t]) flags_[d].absolute = true;
    } else if (const std::int32_t of = knownSource(stage_, tensor); of >= 0) {
      for (std::size_t d = 0; d < dimVars_[t].size(); ++d)
        dims_.unite(dimVars_[t][d], dimVars_[of][d]);
    }
  }
}

void DimensionGraphBuilder::singleOutValues(const StageTensor& tensor, std::int32_t values) {
  std::set<std::int64_t> distinct;
  for (const Rational& r : tensor.constant->elements) {
    if (r.fitsInt64() && r.toInt64() >= 0 && r.toInt64() < kUnboundedValues)
      distinct.insert(r.toInt64());
  }
  for (const std::int64_t v : distinct) valueCuts_.emplace_back(values, v);
}

void DimensionGraphBuilder::relateEquation(const Equation& e) {
  for (const auto& [part, weight] : e.parts) {
    const auto& local = dimVars_[part];
    const auto& logical = dimVars_[e.logical];
    if (local.size() != e.box.size() || logical.size() != e.box.size())
      throw Unsupported("lineage relates tensors of different rank");
    for (std::size_t d = 0; d < e.box.size(); ++d) {
      if (sizes_[local[d]] != e.box[d].second - e.box[d].first)
        throw Unsupported("lineage relates a box and a local tensor of different shapes");
      relateRange(logical[d], e.box[d].first, local[d], true);
    }
    if (valueVars_[part] >= 0 && valueVars_[e.logical] >= 0) {
      dims_.unite(valueVars_[part], valueVars_[e.logical]);
      if (e.parts.size() > 1 || weight != 1) summedValues_.push_back(valueVars_[part]);
    }
  }
  equations_.push_back(&e);
}

DimensionGraph buildDimensionGraph(const Stage& stage, bool knownInputs) {
  return DimensionGraphBuilder(stage, knownInputs).run();
}

}  // namespace shardproof
