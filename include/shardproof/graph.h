// A verification problem in memory: the logical model, the plan's programs (families of instances, never copies) and the lineage.
// Flat arrays and 32-bit ids throughout; docs/format.md says what the fields mean.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "shardproof/names.h"
#include "shardproof/rational.h"

namespace shardproof {

using Shape = std::vector<std::int64_t>;

enum class TensorKind : std::uint8_t { kProduced, kInput, kParameter, kConstant };
// What an element of a tensor is: precision is out of scope, so every floating type is "a real number".
enum class ElementKind : std::uint8_t { kReal, kInteger, kComplex };

// The value of a `constant`: one number that fills the tensor, or every element in row-major order.
struct ConstantValue {
  std::vector<Rational> elements;  // size 1 with `fill`, else the number of elements
  bool fill = true;
};

using AttributeValue = std::variant<bool, Rational, std::string, std::vector<std::int64_t>>;
// Attributes of one node, sorted by key. Numbers keep their exact decimal value.
using Attributes = std::map<std::string, AttributeValue, std::less<>>;
using AttributesId = Id<struct AttributesTag>;
using OperatorId = Id<struct OperatorTag>;  // index into the operator registry (ops/registry.h)

struct Tensor {
  NameId name;
  Shape shape;
  TensorKind kind = TensorKind::kProduced;
  ElementKind element = ElementKind::kReal;
  bool elementDeclared = false;               // the file gives a dtype; otherwise it follows from the producing operator
  bool perMicrobatch = false;                 // plan only
  std::int32_t constant = -1;                 // index into Graph::constants
  NameId gradientOf;                          // model only, for messages
};

// A node's reading of a tensor. In a plan `name#k` reads microbatch k's instance.
struct Operand {
  std::int32_t tensor = -1;  // index into the graph's tensors; -1: the operand is absent (null)
  std::int32_t microbatch = -1;  // -1: the node's own
  bool present() const { return tensor >= 0; }
};

// When a plan's node runs.
constexpr std::int32_t kOnce = -1;              // no `mb`: once per rank
constexpr std::int32_t kEachMicrobatch = -2;    // "*": once for each microbatch

// One coordinate assignment, e.g. {"pp": 1, "tp": 0}; axes are indices into Plan::mesh. Sorted by axis.
using Coordinates = std::vector<std::pair<std::int32_t, std::int32_t>>;

enum class Communication : std::uint8_t {
  kNone, kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kSend, kReceive
};
enum class Reduction : std::uint8_t { kSum, kMean, kMax, kMin };

// The communication fields of a plan's node.
struct CommunicationSpec {
  Communication kind = Communication::kNone;
  NameId comm;
  std::optional<std::int64_t> tag;            // where given, stands in the microbatch's place
  std::vector<std::int32_t> groupAxes;        // "group"
  std::vector<Coordinates> groupAt;           // "group_at", in group order; empty when groupAxes is used
  Coordinates peer;                           // broadcast: root; send: to; receive: from
  Reduction reduction = Reduction::kSum;
  std::int32_t dim = 0;                       // all_gather, reduce_scatter; all_to_all: idim
  std::int32_t odim = 0;                      // all_to_all
};

struct Node {
  OperatorId op;                              // invalid for communication nodes
  std::uint32_t firstIn = 0, inCount = 0;     // into Graph::operands
  std::uint32_t firstOut = 0, outCount = 0;   // into Graph::results
  AttributesId attributes;                    // always valid (the empty set is interned too)
  NameId location;                            // optional `loc`
  std::int32_t microbatch = kOnce;            // plan only
  std::int32_t communication = -1;            // plan only: index into Program::communications
};

// The logical model, or the body of one program of a plan.
struct Graph {
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;                    // in file order
  std::vector<Operand> operands;
  std::vector<std::int32_t> results;          // tensor index, -1: absent (null)
  std::vector<ConstantValue> constants;
  std::size_t tensorsAdded = 0;               // at the end of `tensors`, that no file has (Problem::drawn)

  std::span<const Operand> in(const Node& n) const { return {operands.data() + n.firstIn, n.inCount}; }
  std::span<const std::int32_t> out(const Node& n) const { return {results.data() + n.firstOut, n.outCount}; }
};

// Interned attribute sets, shared by model and plan so that equal sets have equal ids.
class AttributeTable {
 public:
  AttributesId intern(Attributes attributes);
  const Attributes& at(AttributesId id) const { return *sets_.at(id.index()); }
  std::size_t size() const { return sets_.size(); }   // ids run from 0
  const std::string& canonicalText(AttributesId id) const { return texts_.at(id.index()); }  // equal text iff equal set
 private:
  std::map<std::string, AttributesId> ids_;
  std::vector<std::unique_ptr<Attributes>> sets_;
  std::vector<std::string> texts_;
};

struct Model {
  std::string file, name;
  std::string sha256;                         // of the file's text, as it was read (gunzipped)
  Graph graph;
  std::vector<std::int32_t> outputs;          // tensor indices
  std::string tensorPointer(std::int32_t tensor, const Names& names) const;  // "/tensors/t1.0"
  static std::string nodePointer(std::int32_t node) { return "/nodes/" + std::to_string(node); }
};

// Of a plan's mesh. Far beyond any cluster; a larger mesh is a typing error that would otherwise show as exhausted memory.
constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20;
struct MeshAxis {
  std::string name;
  std::int32_t size = 1;
};

struct Program {
  Coordinates at;                             // the fixed axes
  Graph graph;
  std::vector<CommunicationSpec> communications;
  bool issueOrder = false;                    // "order": "issue"
};

enum class Role : std::uint8_t { kInput, kOutput, kCheckpoint };

struct Part {
  NameId local;                               // the local tensor's name: found in the program of each rank that is meant
  Coordinates at;
  std::int32_t microbatch = -1;               // "mb": k; -1: not fixed
};

struct Shard {
  std::vector<std::pair<std::int64_t, std::int64_t>> box;       // half-open, per dimension of the logical tensor
  std::vector<std::pair<std::int32_t, Shape>> step;             // axis (or kMicrobatchAxis) -> offset per dimension
  std::vector<Part> parts;
  std::vector<std::int32_t> sum;                                // axes (or kMicrobatchAxis), sorted
};
constexpr std::int32_t kMicrobatchAxis = 1 << 20;               // "mb" where an axis index is expected

struct LineageEntry {
  std::int32_t tensor = -1;                   // logical tensor
  Role role = Role::kCheckpoint;
  std::vector<Shard> shards;
};

struct Plan {
  std::string file, name, modelFile;          // modelFile: as the plan names it, may be empty
  std::string sha256;                         // of the file's text, as it was read (gunzipped)
  std::vector<MeshAxis> mesh;                 // slowest first
  std::int32_t microbatches = 1;
  std::vector<Program> programs;
  std::vector<LineageEntry> lineage;
  // Entries that say which part of a dropout's mask a rank draws (src/plan/dropout_masks.h): a verdict that rests on them needs them proved.
  std::vector<std::int32_t> positioning;
  std::int64_t ranks() const;
  static std::string nodePointer(std::int32_t program, std::int32_t node) {
    return "/programs/" + std::to_string(program) + "/nodes/" + std::to_string(node);
  }
};

// A dropout node that draws its mask: the reader gives it the mask as its last operand (src/plan/dropout_masks.h).
struct DrawnMask {
  std::int32_t program = -1;                  // -1: the model
  std::int32_t node = -1;
  AttributesId written;                       // as the file has them, with the seed
};

// Everything that was read, with the tables that model and plan share.
struct Problem {
  Names names;
  AttributeTable attributes;
  Model model;
  Plan plan;
  // What the reader added for dropout, so that the files can be written again without it.
  std::vector<DrawnMask> drawn;
  std::size_t lineageAdded = 0;               // entries at the end of plan.lineage
};

}  // namespace shardproof
