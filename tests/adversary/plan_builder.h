// SPDX-License-Identifier: Apache-2.0
// Writes a model and a plan at the same time, operator by operator, so that the plan is right: each
// operator is cut along each axis of the mesh, and along the microbatches, in one of the ways of
// shardings.h chosen at random, operands are brought into the layout that this needs by random
// communication, and what each local tensor holds is known all the while. Lineage is written from
// that, in one of the many ways that say the same.
//
// A local tensor's layout is what docs/format.md calls a shard: the box at the coordinates 0, and
// for each axis (the microbatches are the last) how the box moves or what is added up.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "adversary/case.h"
#include "adversary/shardings.h"

namespace shardproof::adversary {

struct Cut {
  enum class Kind { kWhole, kPiece, kPart, kOnly };
  Kind kind = Kind::kWhole;
  int dim = -1;                 // kPiece
  std::int64_t step = 0;        // kPiece: of the box, for each coordinate
  int reduction = kSum;         // kPart
  std::int64_t coordinate = 0;  // kOnly: nobody else has it
  friend bool operator==(const Cut&, const Cut&) = default;
};

struct Local {
  std::string name = {};
  int logical = -1;
  Shape low = {}, length = {};
  std::vector<Cut> cuts = {};
  bool perMb = false;
};

struct BuilderOptions {
  std::vector<std::int64_t> mesh;  // sizes
  std::int64_t microbatches = 1;
  bool issueOrder = false;
  int cutPoints = 50;  // per cent of local tensors
  int cut = 60;        // per cent of the places where an axis may be cut that it is
  int strange = 20;    // per cent of inputs with boxes that overlap, run backwards or leave gaps
                       // between microbatches of ranks
};

class PlanBuilder {
 public:
  PlanBuilder(Random& random, BuilderOptions options);

  // A given tensor of the model; local ones are made where they are needed.
  int input(const Shape& shape, ElementKind element = ElementKind::kReal, bool parameter = false);
  int constant(const Shape& shape);
  // Results that do not exist are -1. Operands that are absent are -1.
  std::vector<int> apply(const ops::testing::Call& call, const std::vector<int>& operands);
  const ops::TensorInfo& info(int logical) const {
    return logicals_.at(static_cast<std::size_t>(logical)).info;
  }
  bool given(int logical) const {
    return logicals_.at(static_cast<std::size_t>(logical)).producer < 0;
  }
  int size() const { return static_cast<int>(logicals_.size()); }
  Case finish();

 private:
  struct Logical {
    std::string name = {};
    ops::TensorInfo info = {};
    std::string kind = {};            // "": produced
    std::vector<double> values = {};  // of a constant; one: it fills
    int producer = -1, result = 0;    // index into made_
    bool read = false;
    std::vector<int> locals = {};
  };
  struct Made {
    ops::testing::Call call = {};
    std::vector<int> operands = {}, results = {};
  };
  struct Rank {
    std::vector<std::int64_t> at = {};
    Json tensors = Json::object();
    std::vector<Json> nodes = {};
  };
  using NodeOf =
      std::function<Json(const std::vector<std::int64_t>& at)>;  // coordinates, the microbatch last
                                                                 // (0 where there is none)

  std::size_t axes() const { return mesh_.size(); }  // the microbatches' place in Local::cuts
  std::int64_t count(std::size_t axis) const {
    return axis < axes() ? mesh_[axis] : options_.microbatches;
  }
  const std::string& axisName(std::size_t axis) const { return names_[axis]; }
  Local& local(int id) { return locals_[static_cast<std::size_t>(id)]; }
  Logical& logical(int id) { return logicals_[static_cast<std::size_t>(id)]; }

  Local canonical(int logical, const std::vector<Cut>& wants) const;
  static bool satisfies(const Local& have, const Local& target);
  bool cleanDim(const Local& have, const Local& target, int dim) const;
  bool tiles(const Local& l, std::size_t axis) const;

  int declare(Local l);  // a new name, on the ranks that have it
  int given(int logical, Local l);
  int anyGiven(int logical);
  int need(int logical,
           const std::vector<Cut>&
               wants);  // the local tensor of this layout, by whatever communication it takes
  std::optional<int> bring(int from, const Local& target);
  void produce(int made, bool whole);
  void produceAs(const Made& made, const std::vector<Sharding>& chosen,
                 const std::vector<std::optional<std::int64_t>>& only);

  int flip(int from, std::size_t axis);
  void maySaySizes(Json& node, std::int64_t members, std::int64_t size);
  int gather(int from, std::size_t axis);
  int combine(int from, const std::vector<std::size_t>& list);
  int toRoot(int from, std::size_t axis, Local whole, const char* op, const Json& attributes,
             bool backwards);
  int accumulate(const Local& old, Local whole);
  int combineScattered(int from, std::size_t axis, int dim);
  int exchange(int from, std::size_t axis, int dim);
  int scatter(int from, std::size_t axis, int dim);
  int part(int from, std::size_t axis);
  int spread(int from, std::size_t axis);
  int move(int from, std::size_t axis, std::int64_t to);

  bool has(const Rank& rank, const Local& l) const;
  std::string read(int id, bool perMb);  // as an operand
  // `node` may say that a rank has none: null.
  void emit(const Local& where, bool perMb, const NodeOf& node, bool communicates = false);
  Json communication(const std::string& op, const std::string& in, const std::string& out,
                     const std::vector<std::size_t>& list, bool backwards);
  void fillGroup(Json& node, const std::vector<std::size_t>& list, bool backwards);
  std::string freshComm();

  std::optional<Json> shards(const Local& l, bool assumed);
  void lineage(int logical, const char* role, const Local& l);
  void sortByMicrobatch(std::vector<Json>& nodes, const std::vector<std::int64_t>& order) const;
  void programs(Json& to, std::vector<const Rank*> ranks, std::vector<std::size_t> fixed);

  Random& random_;
  BuilderOptions options_;
  std::vector<std::int64_t> mesh_;
  std::vector<std::string> names_;  // of axes
  std::vector<std::size_t> order_;  // which axis is the outer one where several cut one dimension
  std::vector<Logical> logicals_;
  std::vector<Local> locals_;
  std::vector<Made> made_;
  std::vector<Rank> ranks_;
  Json lineage_ = Json::array(), modelNodes_ = Json::array();
  int comms_ = 0;
  std::int64_t tag_ = 0;
};

// An attribute as the file has it: numbers are rounded to what a short decimal can say.
Json attributesJson(const Attributes& attributes);
Attributes rounded(Attributes attributes);

}  // namespace shardproof::adversary
