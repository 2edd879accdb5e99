// SPDX-License-Identifier: Apache-2.0
// Every communication operator of a plan, once: its fields, who gives and who gets, and what
// becomes of a dimension. Whatever handles communications (reader, writer, validation, checks, cut,
// reduction, evaluation) asks here rather than for kinds. docs/format.md, "Communication", is what
// users read of it; src/explanation/executor/ has its own, written from that page.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::ops {

// Which members of a communication have an operand, or a result.
enum class Who : std::uint8_t {
  kNobody,
  kAll,
  kRoot,
  kOthers,  // all but the root
  kIssuer,  // of a message: this side, and not the other
};

// An attribute that names a dimension of the operand.
enum class Along : std::uint8_t { kNothing, kDim, kOtherDim };  // CommunicationSpec::dim, odim

struct Collective {
  Communication kind = Communication::kNone;
  const char* name = "";
  const char* peer = "";  // the field with the coordinates of root, receiver or sender; or empty
  Who operand = Who::kAll, result = Who::kAll;
  bool reduces = false;              // members' operands are combined: attribute "reduce"
  bool uneven = false;               // pieces may have any length: field "sizes"
  bool permutes = false;             // each target has its source's operand: field "pairs"
  Along scatters = Along::kNothing;  // a member gets its own piece along this dimension
  Along gathers = Along::kNothing;   // members' pieces are concatenated along this dimension

  bool message() const { return operand == Who::kIssuer || result == Who::kIssuer; }
  bool rooted() const { return operand == Who::kRoot || result == Who::kRoot; }
  bool movesPieces() const { return scatters != Along::kNothing || gathers != Along::kNothing; }
  // Names of the attributes in a file, in the order of the alphabet.
  std::vector<std::string_view> attributes() const;
  // The dimension that `along` means, of an operand with `rank` dimensions; -1: none.
  static std::int32_t dimension(Along along, std::int32_t dim, std::int32_t odim, std::size_t rank);
  // How many operands and results the node of a member has.
  std::size_t operands(bool root) const { return has(operand, root) ? 1 : 0; }
  std::size_t results(bool root) const { return has(result, root) ? 1 : 0; }

 private:
  static bool has(Who who, bool root) {
    return who == Who::kAll || who == Who::kIssuer || (who == Who::kRoot && root) ||
           (who == Who::kOthers && !root);
  }
};

// All that a plan can have.
std::span<const Collective> collectives();
// Also of Communication::kPart. Throws std::logic_error for kNone.
const Collective& collectiveOf(Communication kind);

// "all_reduce", ...; "none".
const char* communicationName(Communication kind);
const char* reductionName(Reduction reduction);  // "sum", ...
std::optional<Reduction> findReduction(std::string_view name);
// kNone when `op` is no communication operator of a plan.
Communication findCommunication(std::string_view op);

// The shape of one member's result from the members' operands, which all have shape `in`. Throws
// ShapeError when the spec does not fit.
Shape communicationShape(const CommunicationSpec& spec, const Shape& in, std::int64_t groupSize);

// --- Uneven pieces: CommunicationSpec::sizes is not empty ---

// [begin, begin + size) of one member's operand along `dim`.
struct Window {
  std::int64_t member, begin, size;
};

// How many members the sizes are for.
std::int64_t membersOf(const CommunicationSpec& spec);
// The length along `dim` of the operand of the member at `place`. 0: it has no operand.
std::int64_t lengthGiven(const CommunicationSpec& spec, std::int64_t place);
// What the result of the member at `place` is put together of, in group order: pieces that are not
// empty. Of a reduce_scatter at most one, of the reduction (`member` is 0). None: it has no result.
std::vector<Window> windowsOf(const CommunicationSpec& spec, std::int64_t place);
// Throws ShapeError where the operand of the member at `place` does not have the length that it
// gives.
void checkGiven(const CommunicationSpec& spec, const Shape& operand, std::int64_t place);
// As communicationShape, of members whose operands have these shapes (null: none), for a member
// that has a result.
Shape unevenShape(const CommunicationSpec& spec, const std::vector<const Shape*>& operands,
                  std::int64_t place);

}  // namespace shardproof::ops
