// SPDX-License-Identifier: Apache-2.0
// Nodes that take parts out of the local tensors of one program, and put such tensors together of
// parts: what LocalPart says, in operators. Both directions are exact inverses: slices and a
// concatenation, a regrouping and its inverse, a permutation and its inverse, a multiple by a
// rational that is not 0 and by its inverse.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::ir {

using LocalBox = std::vector<std::pair<std::int64_t, std::int64_t>>;

// "[0:4, 8:12]"
std::string textOf(const LocalBox& box);
bool overlap(const LocalBox& a, const LocalBox& b);
// The elements of a tensor of this shape that the part is about.
LocalBox boxOf(const LocalPart& part, const Shape& whole);
// Without effect: the whole tensor as it is.
bool isWhole(const LocalPart& part);
// What is wrong with the part of a tensor of this shape, as a field and a message; empty: nothing.
std::pair<std::string, std::string> wrongWith(const LocalPart& part, const Shape& whole);

// Names of tensors that no file has: the same for the same part in all programs.
class PartNames {
 public:
  explicit PartNames(Problem& problem);
  // `what` is said after the name of the local tensor.
  NameId of(NameId local, const std::string& what);
  // The part itself: "x[0:4, 8:12].permute(1, 0) * 1/2".
  NameId of(NameId local, const LocalPart& part);

 private:
  Names& names_;
  std::unordered_set<NameId> taken_;
  std::map<std::pair<NameId, std::string>, NameId> names_made_;
};

// Where nodes are added.
struct PartSite {
  std::vector<Node>* nodes = nullptr;
  Microbatch microbatch;
  std::string place;  // in the file, what they are there for
  std::set<TensorId> made;
};

class PartNodes {
 public:
  PartNodes(Problem& problem, Program& program, PartNames& names);

  // The part of a tensor.
  TensorId takenOut(PartSite& site, TensorId whole, const LocalPart& part);
  // The tensor that is the part of a given tensor, given in its place.
  TensorId given(TensorId whole, const LocalPart& part);
  // The elements of `whole` in the part's box, as they lie there.
  TensorId putBack(PartSite& site, TensorId whole, const LocalPart& part, TensorId piece);

  struct Piece {
    LocalBox box;
    TensorId tensor;
  };
  enum class Rest : std::uint8_t {
    kNone,   // there must be none: throws it
    kZeros,  // elements in no piece are 0
    kOwn,    // those of `whole`
  };
  // Thrown where pieces leave out a box that they must not, or lie so that no cuts through the
  // whole tensor separate them (then `rest` is empty).
  struct NotCovered {
    LocalBox rest;
  };
  // Writes a tensor of the shape of `whole` into `to`. Pieces do not overlap.
  void putTogether(PartSite& site, TensorId whole, const std::vector<Piece>& pieces, Rest rest,
                   TensorId to);
  // What stands for a produced tensor where it is read.
  TensorId standIn(TensorId whole);

 private:
  struct Step;
  static std::vector<Step> stepsOf(const LocalPart& part, const Shape& whole);
  TensorId tensor(NameId name, const Shape& shape, TensorId like);
  void node(PartSite& site, const char* op, Attributes attributes,
            const std::vector<TensorId>& operands, TensorId result);
  TensorId put(PartSite& site, TensorId whole, const LocalBox& region,
               const std::vector<Piece>& pieces, Rest rest);
  TensorId restOf(PartSite& site, TensorId whole, const LocalBox& region, Rest rest);
  NameId name(TensorId whole) const { return program_.graph.tensors[whole].name; }
  Shape shape(TensorId whole) const { return program_.graph.tensors[whole].shape; }

  Problem& problem_;
  Program& program_;
  PartNames& names_;
  std::map<NameId, TensorId> tensors_;  // that were added
};

}  // namespace shardproof::ir
