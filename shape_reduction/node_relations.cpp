// SPDX-License-Identifier: Apache-2.0
// What an operator's `relate` rule states, and what a communication does, on the dimension
// variables of a stage. The rules are the operators' (ops/relations.h); nothing is added here, and
// what a rule does not relate is cut independently.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include "ops/collectives.h"
#include "ops/registry.h"
#include "shape_reduction/dimension_graph.h"
#include "shape_reduction/reduction.h"
#include "shardproof/error.h"

#include "shape_reduction/dimension_builder.h"

namespace shardproof {

// Collects what one operator call states, on the stage's dimension variables.
class NodeRelations : public ops::Relations {
 public:
  NodeRelations(DimensionGraphBuilder& builder, const StageNode& node,
                const std::vector<ops::TensorInfo>& results)
      : builder_(builder), node_(node), results_(results) {}

  void equal(ops::DimRef a, ops::DimRef b) override {
    const std::int32_t x = var(a), y = var(b);
    if (x < 0 || y < 0) return;
    if (builder_.sizes_[x] != builder_.sizes_[y])
      throw std::logic_error("operator relates dimensions of different sizes");
    builder_.dims_.unite(x, y);
    same_.emplace_back(key(a), key(b));
  }
  void range(ops::DimRef whole, std::int64_t lo, ops::DimRef part) override {
    const std::int32_t x = var(whole), y = var(part);
    if (x < 0 || y < 0) return;
    builder_.relateRange(x, lo, y, false);
    same_.emplace_back(key(whole), key(part));
  }
  void regroup(std::span<const ops::DimRef> a, std::span<const ops::DimRef> b) override {
    RegroupRelation relation;
    for (const ops::DimRef d : a) relation.a.push_back(var(d));
    for (const ops::DimRef d : b) {
      relation.b.push_back(var(d));
    }
    builder_.regroups_.push_back(std::move(relation));
  }
  void pairs(ops::DimRef whole, ops::DimRef half) override {
    const std::int32_t two = builder_.newDim(2);
    builder_.flags_[two].keep = true;
    RegroupRelation relation;
    relation.a = {var(whole)};
    relation.b = {var(half), two};
    builder_.regroups_.push_back(std::move(relation));
    same_.emplace_back(key(whole), key(half));
  }
  void summed(ops::DimRef d) override {
    if (const std::int32_t x = var(d); x >= 0) {
      builder_.flags_[x].summed = true;
      summed_.push_back(key(d));
    }
  }
  void keep(ops::DimRef d) override {
    if (const std::int32_t x = var(d); x >= 0) builder_.flags_[x].keep = true;
  }
  void absolute(ops::DimRef d) override {
    if (const std::int32_t x = var(d); x >= 0) builder_.flags_[x].absolute = true;
    anyAbsolute_ = true;
  }
  bool anyAbsolute() const { return anyAbsolute_; }
  void iterates(std::span<const ops::DimRef> dims) override {
    for (const ops::DimRef d : dims) {
      if (var(d) >= 0) listed_.push_back(key(d));
    }
  }
  void virtualTensor(int slot, const Shape& shape) override {
    std::vector<std::int32_t> dims;
    for (const std::int64_t n : shape) dims.push_back(builder_.newDim(n));
    virtual_[slot] = std::move(dims);
  }

  // The index variables of each result: its own dimensions and those that are summed, dimensions
  // that run together being one. Dimensions are told apart by slot, not by tensor: an operand that
  // is given twice (x x^T) runs through two variables. And one result may run twice along one
  // operand's dimension (the rows and columns of a causal mask): two variables.
  std::vector<std::vector<std::vector<std::int32_t>>> variables() {
    std::map<Key, Key> representative;
    // Paths are compressed: a `cat` of the pieces of hundreds of ranks is one chain.
    const auto find = [&](Key k) {
      Key root = k;
      for (auto it = representative.find(root); it != representative.end();
           it = representative.find(root))
        root = it->second;
      while (k != root) k = std::exchange(representative.at(k), root);
      return root;
    };
    for (const auto& [x, y] : same_) {
      const Key a = find(x), b = find(y);
      if (a != b) representative[b] = a;
    }
    std::vector<std::vector<std::vector<std::int32_t>>> result;
    for (std::size_t r = 0; r < node_.out.size(); ++r) {
      if (node_.out[r] < 0) continue;
      std::map<Key, std::pair<std::set<std::int32_t>, int>>
          classes;  // its dimensions, how many variables it is
      const auto slot = static_cast<int>(node_.in.size() + r);
      const auto rank = static_cast<int>(builder_.dimVars_[node_.out[r]].size());
      for (int d = 0; d < rank; ++d) ++classes[find({slot, d})].second;
      for (const auto* more : {&summed_, &listed_}) {
        for (const Key& k : *more) {
          int& count = classes[find(k)].second;
          count = std::max(count, 1);
        }
      }
      const auto addDim = [&](Key k) {
        const auto it = classes.find(find(k));
        const std::int32_t d = it == classes.end() ? -1 : var({k.first, k.second});
        if (d >= 0 && builder_.sizes_[d] > 1) it->second.first.insert(d);
      };
      for (int d = 0; d < rank; ++d) addDim({slot, d});
      for (const auto& [x, y] : same_) {
        addDim(x);
        addDim(y);
      }
      for (const Key& k : summed_) addDim(k);
      for (const Key& k : listed_) addDim(k);
      std::vector<std::vector<std::int32_t>> variables;
      for (const auto& [root, members] : classes) {
        if (members.first.empty()) continue;
        for (int i = 0; i < members.second; ++i)
          variables.emplace_back(members.first.begin(), members.first.end());
      }
      result.push_back(std::move(variables));
    }
    return result;
  }

 private:
  using Key = std::pair<int, int>;  // slot, dimension
  static Key key(ops::DimRef d) { return {d.slot, d.dim}; }

  std::int32_t var(ops::DimRef ref) {
    const auto operands = static_cast<int>(node_.in.size());
    if (const auto it = virtual_.find(ref.slot); it != virtual_.end())
      return ref.dim == ops::kValues ? -1 : it->second.at(static_cast<std::size_t>(ref.dim));
    StageTensorId tensor;
    if (ref.slot < operands) tensor = node_.in.at(static_cast<std::size_t>(ref.slot));
    else if (ref.slot - operands < static_cast<int>(node_.out.size()))
      tensor = node_.out.at(static_cast<std::size_t>(ref.slot - operands));
    else throw std::logic_error("operator names a slot that it has not declared");
    if (tensor < 0) {
      // A result that this stage does not need still ties its operands together.
      if (ref.slot < operands) throw std::logic_error("operator relates an absent operand");
      virtualTensor(ref.slot, results_.at(static_cast<std::size_t>(ref.slot - operands)).shape);
      return var(ref);
    }
    return ref.dim == ops::kValues
               ? builder_.valueVars_[tensor]
               : builder_.dimVars_[tensor].at(static_cast<std::size_t>(ref.dim));
  }

  DimensionGraphBuilder& builder_;
  const StageNode& node_;
  const std::vector<ops::TensorInfo>& results_;
  std::map<int, std::vector<std::int32_t>> virtual_;
  std::vector<std::pair<Key, Key>> same_;
  std::vector<Key> summed_, listed_;
  bool anyAbsolute_ = false;
};

void DimensionGraphBuilder::relateNode(const StageNode& node) {
  if (node.communication != Communication::kNone) {
    relateCommunication(node);
    return;
  }
  const ops::OperatorInfo& op = ops::Registry::instance().at(node.op);
  std::vector<const ops::TensorInfo*> in, out;
  for (const StageTensorId t : node.in) in.push_back(t >= 0 ? &stage_.tensors[t].info : nullptr);
  const ops::Signature signature{*node.attributes, in, node.out.size()};
  std::vector<ops::TensorInfo> results = op.infer(signature);
  for (std::size_t i = 0; i < node.out.size(); ++i) {
    // A declared [1] where the rule says [] is taken as declared.
    if (node.out[i] >= 0) results[i] = stage_.tensors[node.out[i]].info;
    out.push_back(node.out[i] >= 0 ? &results[i] : nullptr);
  }
  NodeRelations relations(*this, node, results);
  op.relate(signature, out, relations);
  if (!node.logical && op.followsLogicalPosition && relations.anyAbsolute()) {
    throw Unsupported(op.name +
                      " on a rank follows the logical position of its operand, which the rank's "
                      "own tensor does not tell");
  }
  for (auto& variables : relations.variables())
    iterations_.emplace_back(node.logical, std::move(variables));
}

void DimensionGraphBuilder::relateCommunication(const StageNode& node) {
  const std::int32_t result = node.out.at(0);
  if (result < 0) return;
  const auto& out = dimVars_[result];
  const ops::Collective& collective = ops::collectiveOf(node.communication);
  const auto dimension = [&](ops::Along along) {
    return ops::Collective::dimension(along, node.dim, node.odim, out.size());
  };
  const std::int32_t gathered = dimension(collective.gathers),
                     scattered = dimension(collective.scatters);
  for (std::size_t i = 0; i < node.in.size(); ++i) {
    const auto& in = dimVars_[node.in[i]];
    const auto index = static_cast<std::int64_t>(i);
    for (std::size_t d = 0; d < out.size(); ++d) {
      const std::int64_t inSize = sizes_[in[d]], outSize = sizes_[out[d]];
      const bool gathers = static_cast<std::int32_t>(d) == gathered,
                 scatters = static_cast<std::int32_t>(d) == scattered;
      if (gathers && scatters) {
        const std::int64_t piece = inSize / static_cast<std::int64_t>(node.in.size());
        stretches_.push_back({out[d], index * piece, in[d], node.member * piece, piece});
      } else if (gathers) {
        relateRange(out[d], index * inSize, in[d], false);
      } else if (scatters) {
        relateRange(in[d], node.member * outSize, out[d], false);
      } else {
        dims_.unite(in[d], out[d]);
      }
    }
    if (valueVars_[result] >= 0) dims_.unite(valueVars_[result], valueVars_[node.in[i]]);
  }
  // Of indices neither a sum nor the largest one commutes with permutations of what they name.
  if (collective.reduces && valueVars_[result] >= 0) summedValues_.push_back(valueVars_[result]);
  std::vector<std::vector<std::int32_t>> variables;
  for (const std::int32_t d : out) variables.push_back({d});
  iterations_.emplace_back(false, std::move(variables));
}

}  // namespace shardproof
