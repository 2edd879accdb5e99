// SPDX-License-Identifier: Apache-2.0
// Every operator under the reduction that a stage of it alone gets: executed at full size on
// operands that are constant on what each representative stands for, its result at random positions
// is the reduced result at the positions' images. (tests/ops/reduction_test.cpp does this for
// random reductions that the operators' rules allow, at small sizes and with arbitrary matrices in
// the place of indicators; here it is the reduction that proofs are made with.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "ops/cases.h"
#include "shape_reduction/dimension_graph.h"
#include "shape_reduction/reduction.h"

namespace shardproof {
namespace {

using namespace ops::testing;
using Tensor = ops::TensorValue<ops::RealNumbers>;

constexpr std::int64_t kScale =
    4;                        // sizes of about 8 to 60: pieces are longer than what is kept of them
constexpr int kSamples = 60;  // positions of each result

// The stage of one logical node: tensor i is operand i, the results follow.
struct SingleNode {
  explicit SingleNode(const Call& call) {
    StageNode node;
    node.logical = true;
    node.op = ops::Registry::instance().find(call.op);
    node.attributes = std::make_shared<const Attributes>(call.attributes);
    const auto add = [&](const ops::TensorInfo& info, Origin origin, bool present) {
      StageTensor tensor;
      tensor.info = info;
      tensor.origin = origin;
      tensor.logical = true;
      stage.tensors.push_back(tensor);
      return present ? static_cast<std::int32_t>(stage.tensors.size()) - 1 : -1;
    };
    const std::vector<ops::TensorInfo> operands = infosOf(call);
    for (std::size_t i = 0; i < operands.size(); ++i)
      node.in.push_back(StageTensorId(add(operands[i], Origin::kVariable, call.in[i].present)));
    for (const ops::TensorInfo& result : inferResults(call))
      node.out.push_back(StageTensorId(add(result, Origin::kComputed, !result.absent)));
    stage.nodes.push_back(node);
    ReductionOptions options;
    options.keepAbsolute = true;  // the entries of a reduced causal mask have no value
    reduced = reduceStage(stage, options);
    graph = buildDimensionGraph(stage);
  }

  std::vector<ops::ReducedDim> dims(std::size_t tensor) const {
    std::vector<ops::ReducedDim> list;
    for (const ops::ReducedDim* d : reduced.dims[tensor]) list.push_back(*d);
    return list;
  }

  Stage stage;
  ReducedStage reduced;
  DimensionGraph graph;
};

// The image of each full position of one dimension. On each of its lines what one representative
// stands for is a run of positions and is named by the first.
std::vector<std::int64_t> images(const SingleNode& single, std::size_t tensor, std::size_t d) {
  const ops::ReducedDim& dim = *single.reduced.dims[tensor][d];
  const auto& lines =
      single.graph.linesOfGroup[static_cast<std::size_t>(single.graph.dimOfTensor[tensor][d])];
  std::vector<std::int64_t> representative(static_cast<std::size_t>(dim.full), 0);
  std::int64_t stride = dim.full;
  for (const std::int32_t l : lines) {
    const std::int64_t size = single.graph.lines[static_cast<std::size_t>(l)].size;
    stride /= size;
    std::set<std::int64_t> firsts;
    for (const std::int64_t p : dim.position) firsts.insert(p / stride % size);
    for (std::int64_t i = 0; i < dim.full; ++i)
      representative[static_cast<std::size_t>(i)] +=
          *std::prev(firsts.upper_bound(i / stride % size)) * stride;
  }
  std::vector<std::int64_t> weight(dim.position.size(), 0);
  for (std::int64_t& r : representative) {
    r = std::find(dim.position.begin(), dim.position.end(), r) - dim.position.begin();
    ++weight.at(static_cast<std::size_t>(r));
  }
  EXPECT_EQ(weight, dim.weight);  // the weights are what they are said to be
  return representative;
}

// The image of a tensor's full position (row-major).
class PositionMap {
 public:
  PositionMap(const SingleNode& single, std::size_t tensor)
      : shape_(single.stage.tensors[tensor].info.shape) {
    for (std::size_t d = 0; d < shape_.size(); ++d) {
      image_.push_back(images(single, tensor, d));
      dims_.push_back(single.reduced.dims[tensor][d]);
    }
  }
  std::int64_t operator()(std::int64_t position) const {
    std::int64_t reduced = 0, stride = 1;
    for (std::size_t d = shape_.size(); d-- > 0;) {
      reduced += image_[d][static_cast<std::size_t>(position % shape_[d])] * stride;
      stride *= dims_[d]->size();
      position /= shape_[d];
    }
    return reduced;
  }
  // Is it the position that its representative is named by?
  bool first(std::int64_t position) const {
    for (std::size_t d = shape_.size(); d-- > 0;) {
      const std::int64_t i = position % shape_[d];
      if (dims_[d]->position[static_cast<std::size_t>(image_[d][static_cast<std::size_t>(i)])] != i)
        return false;
      position /= shape_[d];
    }
    return true;
  }

 private:
  Shape shape_;
  std::vector<std::vector<std::int64_t>> image_;
  std::vector<const ops::ReducedDim*> dims_;
};

// Random values of the reduced operand, and the full operand that has them wherever a
// representative stands.
std::pair<Tensor, Tensor> operandsOf(const SingleNode& single, std::size_t tensor, OperandSpec spec,
                                     Random& random) {
  Tensor full, reduced;
  full.element = reduced.element = spec.element;
  for (const std::int64_t n : spec.shape) full.dims.push_back(ops::ReducedDim::whole(n));
  reduced.dims = single.dims(tensor);
  spec.shape.clear();
  for (const ops::ReducedDim& d : reduced.dims) spec.shape.push_back(d.size());
  reduced.data = randomTensor(spec, random).data;
  // An index chooses among the values that the reduced tables tell apart: one that stands for many
  // rows is no single row's.
  if (const auto& values = single.reduced.values[tensor];
      spec.element == ElementKind::kInteger && !values.empty())
    for (double& x : reduced.data) x = static_cast<double>(values[random() % values.size()]);
  const PositionMap map(single, tensor);
  const std::int64_t planes = full.planes();
  for (std::int64_t i = 0; i < full.positions(); ++i)
    for (std::int64_t p = 0; p < planes; ++p)
      full.data.push_back(reduced.data[static_cast<std::size_t>(map(i) * planes + p)]);
  return {std::move(full), std::move(reduced)};
}

// Returns how many dimensions were reduced.
int compare(const Call& call, Random& random) {
  const SingleNode single(call);
  const std::size_t operands = call.in.size();
  std::vector<Tensor> full(operands), reduced(operands);
  for (std::size_t i = 0; i < operands; ++i)
    if (call.in[i].present)
      std::tie(full[i], reduced[i]) = operandsOf(single, i, call.in[i], random);
  std::vector<std::vector<ops::ReducedDim>> dims;
  int reducedDims = 0;
  for (std::size_t t = 0; t < single.stage.tensors.size(); ++t) {
    for (const ops::ReducedDim* d : single.reduced.dims[t]) reducedDims += d->reduced() ? 1 : 0;
    if (t >= operands) dims.push_back(single.dims(t));
  }
  DoubleAlgebra algebra;
  const std::vector<Tensor> expected = run(algebra, call, full),
                            found = run(algebra, call, reduced, dims);
  for (std::size_t r = 0; r < expected.size(); ++r) {
    if (single.stage.nodes[0].out[r] < 0) continue;
    const PositionMap map(single, operands + r);
    const std::int64_t planes = expected[r].planes();
    for (int s = 0; s < kSamples; ++s) {
      const auto position =
          static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(expected[r].positions()));
      // A one-hot row is not constant on the positions that one of its window stands for (what
      // stands for them is any of their positions), so only named ones have an image.
      if (call.op == "one_hot" && !map.first(position)) continue;
      for (std::int64_t p = 0; p < planes; ++p) {
        const double x = expected[r].data[static_cast<std::size_t>(position * planes + p)];
        const double y = found[r].data[static_cast<std::size_t>(map(position) * planes + p)];
        EXPECT_TRUE(x == y || std::abs(x - y) <= 1e-9 * (1 + std::abs(x)))
            << "result " << r << " position " << position << ": full " << x << ", reduced " << y;
      }
      if (::testing::Test::HasFailure()) return reducedDims;
    }
  }
  return reducedDims;
}

TEST(ReductionOfOperators, FullResultsAreTheReducedOnesAtThePositionsImages) {
  Random random(41);
  std::map<std::string, int> reducedDims;
  for (int round = 0; round < 2; ++round) {
    for (const Call& forward : forwardCalls(random, kScale)) {
      std::vector<Call> calls{forward};
      if (hasBackward(forward)) calls.push_back(backwardCall(forward));
      for (const Call& call : calls) {
        SCOPED_TRACE(describe(call));
        reducedDims[call.op] += compare(call, random);
        ASSERT_FALSE(::testing::Test::HasFailure());
      }
    }
  }
  // No operator may pass by never being reduced, and none may be missing.
  for (std::size_t i = 0; i < ops::Registry::instance().size(); ++i) {
    const std::string& name =
        ops::Registry::instance().at(OperatorId(static_cast<std::int64_t>(i))).name;
    EXPECT_GT(reducedDims[name], 0) << name;
  }
}

}  // namespace
}  // namespace shardproof
