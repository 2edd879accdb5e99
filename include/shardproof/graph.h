// SPDX-License-Identifier: Apache-2.0
// A verification problem in memory: the logical model, the plan's programs (SPMD instances,
// never copies) and the lineage. Flat arrays and 32-bit ids throughout; docs/format.md says what
// the fields mean.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "shardproof/capture.h"
#include "shardproof/names.h"
#include "shardproof/rational.h"

namespace shardproof {

using Shape = std::vector<std::int64_t>;

enum class TensorKind : std::uint8_t { kProduced, kInput, kParameter, kConstant };
// What an element of a tensor is: precision is out of scope, so every floating type is "a real
// number".
enum class ElementKind : std::uint8_t { kReal, kInteger, kComplex };

// The value of a `constant`: one number that fills the tensor, or every element in row-major order.
struct ConstantValue {
  std::vector<Rational> elements;  // size 1 with `fill`, else the number of elements
  bool fill = true;
  friend bool operator==(const ConstantValue&, const ConstantValue&) = default;
};

using AttributeValue = std::variant<bool, Rational, std::string, std::vector<std::int64_t>>;
// Attributes of one node, sorted by key. Numbers keep their exact decimal value.
using Attributes = std::map<std::string, AttributeValue, std::less<>>;
using AttributesId = Id<struct AttributesTag>;
using OperatorId = Id<struct OperatorTag>;  // index into the operator registry (ops/registry.h)

// What is known of an input of the model beside its shape. No proof uses it: what is proved holds
// for all values. What is refuted is refuted at values of which it is true.
struct KnownInput {
  enum class Kind : std::uint8_t {
    kNumbers,   // it stands for certain numbers that no file can say exactly
    kNumberOf,  // its elements are those of an integer input, as numbers
    kWithin,    // its elements are integers that lie in certain stretches
  };
  Kind kind = Kind::kNumbers;
  // kNumbers: all elements, row-major, rounded; none where they are not known precisely enough to
  // tell a difference.
  std::vector<double> numbers;
  // kNumberOf: each element is that of this tensor, of the same shape, plus a number.
  TensorId tensor;
  std::int64_t plus = 0;
  // kWithin, and with kNumberOf what is known so of `tensor`: [low, high), ascending and apart.
  std::vector<std::pair<std::int64_t, std::int64_t>> within;
};

struct Tensor {
  NameId name;
  Shape shape;
  TensorKind kind = TensorKind::kProduced;
  ElementKind element = ElementKind::kReal;
  bool elementDeclared =
      false;  // the file gives a dtype; otherwise it follows from the producing operator
  bool perMicrobatch = false;  // plan only
  std::int32_t constant = -1;  // index into Graph::constants
  NameId gradientOf;           // model only, for messages
  // Plan only, see LocalPart. No file has the tensor: it is a part of a local tensor that lineage
  // speaks of, or comes between; with `standsFor` it is that tensor, put together of its parts.
  bool added = false;
  TensorId standsFor;
  // Of a given tensor that nodes put together of the parts that lineage speaks of: its kind in the
  // file.
  TensorKind kindInFile = TensorKind::kProduced;
  std::shared_ptr<const KnownInput> known;  // model only, of inputs and parameters; or null
  friend bool operator==(const Tensor&, const Tensor&) = default;
};

// A microbatch, or that there is none, or that each is meant. Not a number: no arithmetic is
// possible with "none" and "each", which once were -1 and -2 and were multiplied by a step.
class Microbatch {
 public:
  constexpr Microbatch() = default;  // none
  static constexpr Microbatch none() { return {}; }
  static constexpr Microbatch each() { return Microbatch(kEach); }
  // Throws std::logic_error for what is no microbatch.
  static constexpr Microbatch of(std::int32_t number) {
    if (number < 0) throw std::logic_error("a microbatch with a negative number");
    return Microbatch(number);
  }
  constexpr bool isNone() const { return value_ == kNone; }
  constexpr bool isEach() const { return value_ == kEach; }
  constexpr bool isOne() const { return value_ >= 0; }
  // Throws std::logic_error where none or each is meant.
  constexpr std::int32_t number() const {
    if (!isOne()) throw std::logic_error("the number of no microbatch was asked for");
    return value_;
  }
  // This one where it is one, else `other`.
  constexpr Microbatch orElse(Microbatch other) const { return isOne() ? *this : other; }
  // What an instance that runs for `instance` of something that is for this one runs for.
  constexpr Microbatch at(Microbatch instance) const { return isEach() ? instance : *this; }
  friend constexpr auto operator<=>(Microbatch, Microbatch) = default;
  // For tables by content only.
  constexpr std::uint32_t hash() const { return static_cast<std::uint32_t>(value_); }

 private:
  static constexpr std::int32_t kNone = -1, kEach = -2;
  explicit constexpr Microbatch(std::int32_t value) : value_(value) {}
  std::int32_t value_ = kNone;
};

// A node's reading of a tensor. In a plan `name#k` reads microbatch k's instance.
struct Operand {
  TensorId tensor;        // of the graph; none: the operand is absent (null)
  Microbatch microbatch;  // none: the node's own
  bool present() const { return tensor.valid(); }
  friend bool operator==(const Operand&, const Operand&) = default;
};

// One coordinate assignment, e.g. {"pp": 1, "tp": 0}; axes are indices into Plan::mesh. Sorted by
// axis.
using Coordinates = std::vector<std::pair<std::int32_t, std::int32_t>>;
// Some coordinates of an axis, [low, high): at least one, not all.
struct Stretch {
  std::int32_t axis = 0;
  std::int32_t low = 0, high = 0;
  bool contains(std::int32_t coordinate) const { return coordinate >= low && coordinate < high; }
  friend auto operator<=>(const Stretch&, const Stretch&) = default;
};
// Sorted by axis, each axis once; of the axes that are not there all coordinates are meant.
using Stretches = std::vector<Stretch>;

enum class Communication : std::uint8_t {
  kNone,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kSend,
  kReceive,
  kReduce,
  kGather,
  kScatter,
  kBarrier,
  kPart,  // of a stage only (ops/collectives.h)
  kPermute,
};
enum class Reduction : std::uint8_t { kSum, kMean, kMax, kMin };

// The communication fields of a plan's node.
struct CommunicationSpec {
  Communication kind = Communication::kNone;
  NameId comm;
  std::optional<std::int64_t> tag;      // where given, stands in the microbatch's place
  std::vector<std::int32_t> groupAxes;  // "group"
  std::vector<Coordinates> groupAt;     // "group_at", in group order; empty when groupAxes is used
  Coordinates peer;                     // root; send: to; receive: from
  Reduction reduction = Reduction::kSum;
  std::int32_t dim = 0;   // along which is gathered or scattered; all_to_all: idim
  std::int32_t odim = 0;  // all_to_all
  // Lengths of the pieces along the dimension in which they are cut (reduce_scatter, all_to_all) or
  // put together (all_gather), in group order; 0: the piece is empty. Of all_to_all row after row
  // what each member sends to each. Empty: all pieces are equal.
  std::vector<std::int64_t> sizes;
  // Of collective_permute: source and target, places in the group. Sorted by target.
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  // Whether members differ in more than their place: then they are not interchangeable, however
  // equal their programs are.
  bool tellsMembersApart() const { return !sizes.empty() || kind == Communication::kPermute; }
  friend bool operator==(const CommunicationSpec&, const CommunicationSpec&) = default;
};

struct Node {
  OperatorId op;                             // invalid for communication nodes
  std::uint32_t firstIn = 0, inCount = 0;    // into Graph::operands
  std::uint32_t firstOut = 0, outCount = 0;  // into Graph::results
  AttributesId attributes;                   // always valid (the empty set is interned too)
  NameId location;                           // optional `loc`
  Microbatch microbatch;  // plan only. None: no `mb`, once per rank; each: "*", of a plan with
                          // several microbatches
  std::int32_t communication = -1;  // plan only: index into Program::communications
  std::int32_t steps = -1;          // plan only: index into Program::steps; -1: on all ranks alike
  std::int32_t added = -1;  // plan only: index into Program::added; -1: the file has the node
  friend bool operator==(const Node&, const Node&) = default;
};

// How the attributes of a node of a plan move with the coordinates of its rank.
struct AttributeSteps {
  // For each axis, ascending: what each coordinate adds to numbers of Node::attributes, which are
  // those at the first coordinate that the program has. Of axes only that the program does not fix.
  std::vector<std::pair<std::int32_t, Attributes>> step;
  // The attributes at all coordinates of these axes that the program has, the last one runs
  // fastest.
  std::vector<AttributesId> sets;
  friend bool operator==(const AttributeSteps&, const AttributeSteps&) = default;
};

// A dropout node that was given the mask which it draws as an operand of its own
// (src/core/ir/dropout_masks.h), and a backward one also a null result for it. What the file says
// of it: everything but that last operand (and result), with these attributes.
struct DrawnMask {
  NodeId node;
  AttributesId attributes;
  friend bool operator==(const DrawnMask&, const DrawnMask&) = default;
};

// The logical model, or the body of one program of a plan.
struct Graph {
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;  // in file order
  std::vector<Operand> operands;
  std::vector<TensorId> results;  // none: absent (null)
  std::vector<std::shared_ptr<const ConstantValue>> constants;
  std::vector<DrawnMask> drawnMasks;
  std::size_t tensorsAdded = 0;  // at the end of `tensors`, that no file has: masks of dropout

  std::span<const Operand> in(const Node& n) const {
    return {operands.data() + n.firstIn, n.inCount};
  }
  std::span<const TensorId> out(const Node& n) const {
    return {results.data() + n.firstOut, n.outCount};
  }
};

// Interned attribute sets, shared by model and plan so that equal sets have equal ids.
class AttributeTable {
 public:
  AttributesId intern(Attributes attributes);
  const Attributes& at(AttributesId id) const { return *sets_.at(id.index()); }
  // For what outlives the table.
  std::shared_ptr<const Attributes> share(AttributesId id) const { return sets_.at(id.index()); }
  std::size_t size() const { return sets_.size(); }  // ids run from 0
  const std::string& canonicalText(AttributesId id) const {
    return texts_.at(id.index());
  }  // equal text iff equal set
 private:
  std::map<std::string, AttributesId> ids_;
  std::vector<std::shared_ptr<const Attributes>> sets_;
  std::vector<std::string> texts_;
};

struct Model {
  std::string file, name;
  std::string sha256;  // of the file's text, as it was read (gunzipped)
  Graph graph;
  std::vector<TensorId> outputs;
  // Of the outputs: arguments of functions of which nothing is known, whose results are inputs.
  std::vector<TensorId> arguments;
  std::string tensorPointer(TensorId tensor, const Names& names) const;  // "/tensors/t1.0"
  static std::string nodePointer(NodeId node) { return "/nodes/" + std::to_string(node.value); }
};

// Of a plan's mesh. Far beyond any cluster; a larger mesh is a typing error that would otherwise
// show as exhausted memory.
constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20;
constexpr std::int64_t kMaxMicrobatches = std::int64_t{1} << 20;  // far beyond any run, too
struct MeshAxis {
  std::string name;
  std::int32_t size = 1;
};

// Where a tensor of a program lies: elements [low, high) of a buffer.
struct BufferPlace {
  NameId buffer;
  std::int64_t low = 0;
  std::optional<std::int64_t> high;  // none: up to the end, wherever that is
  friend bool operator==(const BufferPlace&, const BufferPlace&) = default;
};

// When a program's communication ends, and which memory its tensors share. Values do not depend on
// it: it is checked before any proof (plan/async.h).
struct Asynchrony {
  std::vector<std::pair<NodeId, NameId>> handles;  // communication that is under way until a wait
  std::vector<std::pair<NodeId, NameId>> waits;    // before these nodes start, in file order
  std::vector<NameId> waitsAtEnd;                  // after all nodes
  std::vector<std::pair<TensorId, BufferPlace>> buffers;
  bool empty() const {
    return handles.empty() && waits.empty() && waitsAtEnd.empty() && buffers.empty();
  }
  friend bool operator==(const Asynchrony&, const Asynchrony&) = default;
};

struct Program {
  Coordinates at;    // the fixed axes
  Stretches within;  // of axes that are not fixed: the program runs on these coordinates only
  Graph graph;
  std::vector<CommunicationSpec> communications;
  std::vector<AttributeSteps> steps;
  // Of nodes that no file has (LocalPart): the places in the file of what they are there for.
  std::vector<std::string> added;
  bool issueOrder = false;  // "order": "issue"
  Asynchrony asynchrony;
  ProgramId inFile;  // none: it has the place here that it has in the file. Of programs that are
                     // joined, as they run the same (ir/join_programs.h): the first of them
};

// kAssumed: an approved difference. The user takes the claim as given, so the local tensors that it
// names are what the claim says wherever the plan reads them, whatever computed them.
enum class Role : std::uint8_t { kInput, kOutput, kCutPoint, kAssumed };
// Whether claims of this role are taken as given, and never proved.
constexpr bool isGiven(Role role) { return role == Role::kInput || role == Role::kAssumed; }

struct Part {
  NameId local;  // the local tensor's name: found in the program of each rank that is meant
  Coordinates at;
  Microbatch microbatch;  // "mb": k; none: not fixed
  // Of coordinates of the shard: those over which they range. The same in all parts but for axes
  // that the shard sums over, where each part is summed over its own.
  Stretches within = {};
};

struct Shard {
  std::vector<std::pair<std::int64_t, std::int64_t>>
      box;  // half-open, per dimension of the logical tensor
  std::vector<std::pair<std::int32_t, Shape>>
      step;  // axis (or kMicrobatchAxis) -> offset per dimension
  std::vector<Part> parts;
  std::vector<std::int32_t> sum;  // axes (or kMicrobatchAxis), sorted
};
constexpr std::int32_t kMicrobatchAxis = 1 << 20;  // "mb" where an axis index is expected

struct LineageEntry {
  TensorId tensor;  // logical tensor
  Role role = Role::kCutPoint;
  std::vector<Shard> shards;
  bool inferred = false;      // in no file: found (shardproof/infer.h). After all that files have
  std::string approved = {};  // kAssumed: the name of the difference; may be empty
  std::string guess = {};     // kCutPoint: why its writer is not sure of it; empty: it is
  // Nobody stands for it: what fails may be the entry, not the plan.
  bool isGuess() const { return inferred || !guess.empty(); }
};

// Which part of a local tensor a part of the lineage means, and how it lies there: the elements in
// `box`, regrouped to the shape `view`, with dimension `permute[d]` as dimension d, times `scale`.
// Nodes of the plan take it out (ir/local_parts.h), so nobody else has to know of it:
// Part::local is what they make.
struct LocalPart {
  std::vector<std::pair<std::int64_t, std::int64_t>> box;  // half-open; empty: the whole tensor
  std::optional<Shape> view;
  std::vector<std::int64_t> permute;  // empty: none
  Rational scale = Rational(1);       // not 0
  bool padded = false;  // of an input: elements of the tensor that no part means are 0
  friend bool operator==(const LocalPart&, const LocalPart&) = default;
};
// What a file says of one part of its lineage.
struct PlacedPart {
  EntryId entry;
  std::uint32_t shard = 0, part = 0;
  NameId local;  // the tensor in the file
  LocalPart where;
};

struct Plan {
  std::string file, name, modelFile;  // modelFile: as the plan names it, may be empty
  std::string sha256;                 // of the file's text, as it was read (gunzipped)
  std::vector<MeshAxis> mesh;         // slowest first
  std::int32_t microbatches = 1;
  std::vector<Program> programs;
  std::vector<LineageEntry> lineage;
  Capture capture;
  // Entries that say which part of a dropout's mask a rank draws (src/core/ir/dropout_masks.h): a
  // verdict that rests on them needs them proved.
  std::vector<EntryId> positioning;
  std::int64_t ranks() const;
  bool hasApprovedDifferences() const;
  std::vector<PlacedPart> placed;
  // In the file; of a node that no file has what it is there for.
  std::string nodePointer(ProgramId program, NodeId node) const;
  // The node that has this place in the program's file, or none.
  NodeId nodeAt(ProgramId program, std::int64_t place) const;
  // Whether attributes of any node move with coordinates; whether programs or lineage name
  // stretches. src/core/ir/attribute_steps.h has who can read a plan of either kind, and the plan
  // without.
  bool attributesMove() const;
  bool hasStretches() const;
};

// Everything that was read, with the tables that model and plan share.
struct Problem {
  Names names;
  AttributeTable attributes;
  Model model;
  Plan plan;
  std::size_t lineageAdded = 0;  // entries at the end of plan.lineage that no file has: they place
                                 // the masks of dropout (Graph::drawnMasks)
};

}  // namespace shardproof
