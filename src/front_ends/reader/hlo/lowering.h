// SPDX-License-Identifier: Apache-2.0
// One HLO program, as one device runs it, to a graph of docs/format.md. What does not depend on the
// inputs is computed on the way, what depends on the device's number included: a program for many
// devices is lowered once for each of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reader/hlo/formula.h"
#include "reader/hlo/graph.h"
#include "reader/hlo/parser.h"
#include "reader/hlo/representatives.h"
#include "reader/hlo/scalars.h"
#include "reader/hlo/syntax.h"
#include "reader/hlo/value.h"
#include "reader/hlo/window.h"

namespace shardproof::hlo {

// What the lowerings of one problem share.
struct Shared {
  Scalars scalars;
  bool exactConstants = false, completeIndices = false;
  // Integers that depend on the input. What both programs compute of the k-th parameter and tell
  // apart are functions of it in pieces (`observed`). Of the values that the parameter's type has
  // those in `ranges` stand for all (representatives.h): the tensor of the graph holds the one that
  // stands for the element. So what is proved for these is proved for every integer, and each of
  // them is an integer with which the programs can be run. Parameters of which nothing is told
  // apart are not here.
  struct Range {
    Stretches values;
    // What the graph's tensor holds more than the parameter, so that it is not negative.
    std::int64_t shift() const {
      return values.empty() ? 0 : std::max<std::int64_t>(0, -values.front().first);
    }
    friend bool operator==(const Range&, const Range&) = default;
  };
  std::map<std::size_t, Range> ranges;
  std::map<std::size_t, std::string> integerTypes;  // of the model's parameters
  std::map<std::size_t, std::vector<Pieces>> observed;
  // With `assumeInBounds`, where a lookup of the model is out of bounds.
  std::map<std::size_t, std::vector<Pieces>> outOfBounds;
  // Of the model: where something that is looked up is not a number, so that the model has no
  // value; and its other functions that are constant in pieces. The former is left out, but for
  // values that the latter tell apart.
  std::map<std::size_t, std::vector<Pieces>> noValue, conditions;
  std::set<std::size_t> asNumbers;  // parameters that are also computed with as numbers
  bool assumeInBounds = false;
  // Nothing where the function is known already, or tells nothing apart.
  void observe(std::size_t parameter, const Pieces& function);
  void leaveOut(std::size_t parameter, const Pieces& function);
  // What follows of what was observed since.
  void updateRanges();
  // Set where a range is another one: then the programs, which were lowered with the one before,
  // must be lowered again.
  bool rangesChanged = false;
  std::set<std::size_t> outdated;  // parameters of which more was observed than their ranges show
  // By file and line: arithmetic on integers of which it is not known that the result fits its
  // type. Where it comes from, as reports have it, and the type's bits.
  struct MayOverflow {
    std::string location;
    int bits = 0;
  };
  std::map<std::pair<std::string, std::size_t>, MayOverflow> mayOverflow;
  // FILE:LINE of calls of the host that have no results.
  std::set<std::pair<std::string, std::size_t>> hostCalls;
  // Sizes of the model's parameters that are keys of random generators, and what else is computed
  // with bit by bit: counters that a key is made of (`asBits`).
  std::map<std::size_t, Sizes> keys;
  std::set<std::size_t> asBits;
  void forget(std::size_t parameter);  // what was observed of it
  struct MoreBits {};  // thrown where a parameter is found that is to be one of `asBits`
  // Tensors of numbers that are no rationals, each an unknown of the model.
  struct Unknown {
    std::string name;
    Value content;
  };
  std::vector<Unknown> unknowns;
  // By the name of a communication what is known of the operands of all members. It is lowered
  // while the members are gone through; where that happened they must be gone through again.
  struct Told {
    Known known;
    Definedness definedness;
    Positive positive;
    double least, greatest;
  };
  std::map<std::string, Told> communicated;
  // The tables that devices send, or null where one sends something else.
  std::map<std::string, std::map<std::int64_t, std::shared_ptr<const Table>>> communicatedTables;
  bool forgetTables = false;  // it takes too long until all know all
  // By the path of a branch of the plan that communicates: its condition is the same everywhere.
  std::set<std::string> sameOnAll;
  // The same of functions of an index, as text; empty where devices have different ones.
  std::map<std::string, std::string> communicatedIndices;
  // By the name of a gathering of places (counted from a start) the start on each device.
  std::map<std::string, std::map<std::int64_t, std::int64_t>> gatheredStarts;
  bool communicatedChanged = false;
  // Known values that instructions made of known values, by the instruction and its operands'
  // contents, which are kept with it: other devices, layers and turns need them again.
  struct Made {
    std::vector<Value> operands;
    Value value;
  };
  std::map<std::pair<const Instruction*, std::vector<std::uintptr_t>>, Made> made;
  // Of an instruction that communicates: for each device a text that tells how it takes part.
  std::map<std::pair<const Instruction*, std::size_t>, std::vector<std::string>> takesPart;
};

// Which devices: of `count`, all of them partitions of one replica or replicas of one partition,
// those that may run one program. The first is always one that does.
struct Devices {
  std::vector<std::int64_t> candidates{0};
  std::int64_t count = 1;
  bool replicas = false;
};

// Groups in which devices meet, as the graph's JSON for one device (see mesh.h).
class Grouping {
 public:
  virtual ~Grouping() = default;
  virtual NodeAttributes groupOf(const std::vector<std::vector<std::int64_t>>& groups,
                                 std::int64_t device) const = 0;
  // The least groups along axes in which each device has the one that sends to it, if its place
  // there is affine in the device's coordinates; else nothing.
  virtual std::optional<std::vector<std::vector<std::int64_t>>> affineGroups(
      const std::vector<std::int64_t>& sourceOf) const = 0;
};

// A tensor that may be told apart in the other program: made by instructions of this name.
struct Mark {
  std::string operation;
  Sizes sizes;
  std::string tensor;
  std::optional<Sharding> sharding;
};

// A function of which nothing is known but that equal arguments give equal results. Its results are
// inputs of the graph, its arguments tensors that the other program's have to be proved equal to.
struct OpaqueCall {
  std::string path;       // of its first result
  std::string target;     // what it is called in messages
  std::string function;   // all that tells it from other functions, sizes and types included
  std::string operation;  // op_name
  // The function is applied at each index of these first dimensions of all arguments and results.
  Sizes batch;
  std::vector<std::string> arguments, results;  // tensors of the graph
  std::vector<std::string> inputs;              // the tensors of which `arguments` are other names
  std::optional<Sharding> sharding;
  Place place;
};

struct LocalUnknown {  // a tensor of the graph that is a box of an unknown
  std::string tensor;
  std::size_t unknown = 0;
  Sizes offset;
};

class Lowering {
 public:
  // `grouping` null: the model, a program of one device.
  Lowering(const Module& module, std::string file, Shared& shared, Devices devices,
           const Grouping* grouping);

  // Lowers the entry computation. Throws InputError for what is not supported, with its place.
  void run();

  Graph graph;
  struct Port {
    std::string name;  // of the tensor in the graph; for an integer that is used as a number also
                       // `name` + kAsNumber
    Shape shape;
    std::optional<Sharding> sharding;
    std::int64_t number = 0;
    Place place;
  };
  std::vector<Port> parameters, results;  // parameters by number
  std::vector<Mark> marks;
  std::vector<LocalUnknown> localUnknowns;
  std::vector<OpaqueCall> opaqueCalls;
  // After run(): the devices whose program this is, by what was asked on the way. Each of them
  // would have got the very same graph, but for attributes (GraphNode::ofDevice).
  const std::vector<std::int64_t>& devices() const { return devices_.candidates; }

  static constexpr const char* kAsNumber = " as a number";

  // The values that the elements of an integer tensor can have, as an identity on them.
  Pieces domainOf(const std::string& base) const;

 private:
  struct Frame {
    const Computation* computation = nullptr;
    std::vector<Value> arguments;
    std::vector<Value> values;
    std::string path;       // of names, ends with "/" unless empty
    std::string operation;  // op_name of the calls around
  };

  // --- lowering_devices.cpp: what is not the same on all devices ---
  std::int64_t device() const { return devices_.candidates.front(); }
  // Only devices for which this is what it is for device() stay.
  void narrow(const std::function<bool(std::int64_t)>& sameAsFirst);
  // By a text for each device, which is made once for the instruction (`k` tells uses apart).
  void narrowByPart(const Instruction& i, std::size_t k,
                    const std::function<std::string(std::int64_t)>& text);
  // What device() has of it, and all that stay.
  Value own(const Value& v);
  // Operands as an instruction takes them: what varies is told apart, what is a formula is listed,
  // unless the instruction can do without.
  std::optional<Value> lowerKnown(Frame& frame, const Instruction& i);
  std::optional<Value> remembered(Frame& frame, const Instruction& i);
  // What make() gives, of this shape, that reads `varying`, of which devices have different values.
  Value makeForEach(const Shape& shape, const std::vector<Value*>& varying,
                    const std::function<Value()>& make);
  // What an instruction made, of which nothing stays.
  struct Attempt {
    std::vector<GraphNode> nodes;
    std::vector<std::pair<std::string, GraphTensor>> tensors;
    Value value;
  };
  // Nothing where it did more than to emit nodes.
  std::optional<Attempt> attempt(const std::function<Value()>& make);
  void forgetTensors();
  void listOperands(Frame& frame, const Instruction& i);
  Value varyingValue(const Shape& shape, std::vector<Value> values,
                     const std::vector<std::uint32_t>& valueOf) const;
  Value deviceNumber(const Shape& shape);

  // --- lowering.cpp: control ---
  Value lowerComputation(const Computation& computation, std::vector<Value> arguments,
                         const std::string& path, const std::string& operation);
  Value lowerInstruction(Frame& frame, const Instruction& i);
  Value lowerOpcode(Frame& frame, const Instruction& i);
  Value lowerParameter(Frame& frame, const Instruction& i);
  std::optional<Value> keyTable(const Port& port);
  void askForBits(const std::string& opcode, const std::vector<Value>& x);
  Value lowerWhile(Frame& frame, const Instruction& i);
  Value lowerConditional(Frame& frame, const Instruction& i);
  Value lowerBranches(Frame& frame, const Instruction& i, const Value& which,
                      const std::vector<std::string>& branches);
  Value selected(const Instruction& i, const Value& condition, const Value& first,
                 const Value& second);
  Value lowerConstant(const Instruction& i);
  std::optional<Value> lowerControl(Frame& frame, const Instruction& i);
  void mark(const Instruction& i, const Metadata& metadata, const std::string& operation,
            const Value& value);
  const Computation& called(const Instruction& i, std::string_view attribute) const;
  // "add", "maximum", ... of a computation that does this to its two parameters.
  std::string binaryRegion(const Instruction& i, const Computation& c) const;
  // Whether it is log(exp(a) + exp(b)), as jax.numpy.logaddexp writes it.
  static bool addsExponentials(const Computation& c);
  [[noreturn]] void unsupported(const Instruction& i, const std::string& what) const;
  const Value& operand(const Frame& frame, const Instruction& i, std::size_t k) const;
  std::vector<std::int64_t> dims(const Instruction& i, std::string_view attribute) const;
  void expectShape(const Instruction& i, const Sizes& found) const;

  // --- lowering_values.cpp: what a value is as a tensor ---
  // A tensor of reals of the value's sizes.
  std::string node(const Value& v);
  // The same or one that broadcasts to it.
  std::string compactNode(const Value& v);
  std::string expressionNode(ScalarId id);
  std::string rationalNode(const Rational& value, const Sizes& sizes);
  std::string minusInfinity();
  std::string indexNode(const IndexFunction& f, const Sizes& sizes);
  // An integer tensor of these sizes that holds the base's elements.
  std::string baseNode(const IndexFunction& f, const Sizes& sizes);
  bool isNumber(const std::string& tensor) const;  // one of those that asNumber() made
  // The base as reals: the same elements, as an input of its own.
  std::string asNumber(const std::string& integerTensor);
  // 1 where the base is low, low + 1, ... up to high, along a new last dimension.
  std::string oneHot(const std::string& base, std::int64_t low, std::int64_t high);
  // Whether `low` is the first value that the base can have, and is where it has none of the others
  // (Shared::completeIndices).
  bool isRest(const std::string& base, std::int64_t low) const;
  // 1 where low <= base < high, else 0; of the base's sizes.
  std::string indicator(const std::string& base, std::int64_t low, std::int64_t high);
  std::string indicatorOf(const std::string& base, const Stretches& where);
  std::string between(const std::string& base, std::int64_t low, std::int64_t high);
  void observeLookup(const Lookup& lookup);
  std::string lookupNode(const Lookup& lookup, const Sizes& sizes);
  std::string lookupRows(const Lookup& lookup, const LookupPiece& piece);
  // Dimensions of `name` carry the labels `from`; the result those of `to`, sizes as given.
  std::string arrange(const std::string& name, const std::vector<int>& from,
                      const std::vector<int>& to, const Sizes& sizes);
  // What is known of the elements of one integer tensor is so of another's.
  void sameIntegers(const std::string& from, const std::string& to);
  Value asIndex(const Value& v, std::string newBase) const;
  // Of what the tensor holds minus what it stands for.
  std::int64_t shiftOf(const std::string& base) const;
  // What the base's elements are known to lie within.
  std::optional<Stretch> boundsOf(const std::string& base) const;
  // The values of the base within [low, high).
  Stretches valuesOf(const std::string& base, std::int64_t low, std::int64_t high) const;
  std::optional<Rational> constantOn(const std::string& base, const Pieces& pieces) const;
  // These values of this function are told apart.
  void observe(const std::string& base, const Pieces& pieces);
  // Of a function that is a number somewhere: which of its pieces it is.
  void observePieces(const std::string& base, const Pieces& pieces);
  // With Shared::assumeInBounds, in the model: the values where `inside` is 0 are no values.
  void assumeInside(const std::string& base, const Pieces& inside);
  // In the model: where this is 1 what is looked up has no value.
  void hasNoValue(const std::string& base, const Pieces& none);
  // x, which has no value where the function `none` is 1.
  std::string dividedUnless(const std::string& x, const Value& none);
  std::string rowsBetween(const std::string& base, std::int64_t low, std::int64_t high);
  // 1 where the function has the value 0, 1, ..., count - 1 along a new last dimension.
  std::string rowsOf(const std::string& base, const Pieces& pieces, std::int64_t count);

  void boundBy(const std::string& name, const std::vector<std::string>& chosen);

  // --- lowering_overflow.cpp ---
  // Where an integer that was computed may not fit its type.
  void checkOverflow(const Instruction& i, const Value& made);
  void mayOverflow(const Instruction& i, int bits);

  // --- lowering_known.cpp: tables and formulas ---
  std::string knownNode(const Value& v, bool whole);
  std::string newKnownNode(const Value& v);
  std::string tableNode(const Table& t, bool whole);
  bool dependsOnBits(const Value& v) const;
  std::string listedTable(const Table& t, const Sizes& sizes);
  std::string unknownTable(const Value& known);
  std::string maskNode(const HalfPlane& where, const Sizes& sizes, bool turned);
  std::optional<std::string> halfPlaneNode(const Value& known);
  std::optional<std::string> conditionNode(const Value& known);
  std::optional<std::string> choiceNode(const Value& known);

  // --- emit helpers (lowering_values.cpp) ---
  std::string view(const std::string& x, const Sizes& sizes);
  std::string permute(const std::string& x, const Sizes& dims);
  std::string expand(const std::string& x, const Sizes& sizes);
  std::string sliceDim(const std::string& x, std::size_t d, std::int64_t low, std::int64_t high,
                       std::int64_t step = 1);
  static NodeAttributes sliceAttributes(std::size_t d, std::int64_t low, std::int64_t high,
                                        std::int64_t step = 1);
  std::string cat(const std::vector<std::string>& xs, std::size_t d);
  std::string padDim(const std::string& x, std::size_t d, std::int64_t low, std::int64_t high);
  std::string binary(const std::string& op, const std::string& x, const std::string& y,
                     const Sizes& sizes);
  std::string scalarOp(const std::string& op, const std::string& x, const Rational& scalar);
  std::string oneMinus(const std::string& x);
  std::string step(const std::string& x);  // 1 where x > 0, else 0
  std::string extremum(bool maximum, const std::string& x, const std::string& y);
  bool isValued(const std::string& x) const;  // each element is a number, for every input
  // Of 0 and 1 and any, which need not have values where they are not chosen.
  std::string either(const std::string& condition, const std::string& yes, const std::string& no,
                     const Sizes& sizes);
  // 0 where the condition is 0, and where it is 1.
  std::string onlyIf(const std::string& condition, const std::string& x, const Sizes& sizes);
  std::string unless(const std::string& condition, const std::string& x, const Sizes& sizes);
  // The product, as einsum says it, of operands that are 0 or 1 and a last one; the sum of those of
  // its elements for which all others are 1.
  std::string taken(const std::vector<std::string>& operands, const std::string& equation,
                    const Sizes& sizes);
  const Sizes& sizesOf(const std::string& x) const { return graph.tensor(x).sizes; }

  // --- lowering_elementwise.cpp ---
  std::optional<Value> lowerElementwise(const Frame& frame, const Instruction& i);
  Value elementwise(const Instruction& i, const std::string& opcode, const std::string& direction,
                    const std::vector<Value>& x);
  std::optional<Value> ofBits(const std::string& opcode, const std::vector<Value>& x,
                              const Shape& shape) const;
  // Of a tensor in pieces: on each piece. Of integers and conditions only.
  std::optional<Value> elementwiseParts(const Instruction& i, const std::string& opcode,
                                        const std::string& direction, const std::vector<Value>& x);
  std::optional<Value> elementwiseIndex(const std::string& opcode, const std::string& direction,
                                        const std::vector<Value>& x, const Shape& shape);
  std::string saturated(const Value& x, const std::string& type);
  void refuseNarrow(const Instruction& i, const Value& x, const std::string& type);
  Value convertValue(const Instruction& i, const Value& x, const Shape& shape);

  // --- lowering_bits.cpp: bits of what is known ---
  std::optional<Value> lowerBits(const Frame& frame, const Instruction& i);
  Value bitcastValue(const Instruction& i, const Value& x);
  Value randomBits(const Instruction& i, const Value& state);

  // --- lowering_choices.cpp ---
  std::optional<Value> compareWithPositions(const std::string& direction, const Value& index,
                                            const Value& table, const Shape& shape);
  std::optional<Value> selectLookup(const std::vector<Value>& x, const Shape& shape);
  Value selectNode(const std::vector<Value>& x, const Shape& shape);
  std::optional<bool> compareKnown(const std::string& direction, const Value& x, const Value& y);
  std::string compareNode(const std::string& direction, const Value& x, const Value& y,
                          const Shape& shape);

  // --- lowering_opaque.cpp: functions of which nothing is known ---
  std::optional<Value> lowerOpaque(const Frame& frame, const Instruction& i);
  // What an instruction makes of these operands, along its first dimensions one by one.
  Value opaqueCall(const Instruction& i, const std::string& target, const std::vector<Value>& x,
                   std::size_t batch);
  std::string opaqueFunction(const Instruction& i, const std::vector<Value>& x,
                             std::size_t batch) const;
  std::size_t batchOf(const Instruction& i) const;

  // --- lowering_arithmetic.cpp ---
  std::optional<std::string> unaryNode(const std::string& opcode, const Value& x);
  std::optional<std::string> binaryNode(const std::string& opcode, const Value& x, const Value& y,
                                        const Shape& shape);

  // --- lowering_layout.cpp ---
  Value broadcastValue(const Value& x, const Shape& shape, const Sizes& dimensions);
  Value reshapeValue(const Value& x, const Shape& shape);
  Value transposeValue(const Value& x, const Shape& shape, const Sizes& permutation);
  Value bitcastValue(const Frame& frame, const Instruction& i);
  Value sliceValue(const Value& x, const Shape& shape, const Sizes& start, const Sizes& limit,
                   const Sizes& stride);
  Value concatenateValues(const std::vector<Value>& x, const Shape& shape, std::size_t dim);
  Value padValue(const Instruction& i, const Value& x, const Value& value, const Shape& shape,
                 const std::vector<Sizes>& padding);
  std::vector<Sizes> paddingOfPad(const Frame& frame, const Instruction& i) const;
  Value reverseValue(const Value& x, const Sizes& dims);
  Value updateValue(const Value& x, const Value& update, const Sizes& start, std::size_t from);
  Sizes startsOf(const Frame& frame, const Instruction& i, std::size_t first, const Sizes& sizes,
                 const Sizes& window);
  std::optional<Value> lowerLayout(const Frame& frame, const Instruction& i);

  // --- lowering_sums.cpp: dot, reduce ---
  std::optional<Value> lowerSums(Frame& frame, const Instruction& i);
  Value lowerDot(const Frame& frame, const Instruction& i);
  Value lowerReduce(const Frame& frame, const Instruction& i);
  Value reduceValue(const Instruction& i, const Value& x, const Value& start,
                    const std::string& region, const Sizes& dims, const Shape& shape);

  // Whether a reduction of elements of this type by `region` may leave out this first value.
  bool isNeutral(const std::string& region, const std::string& type, ScalarId first) const;

  // --- lowering_windows.cpp ---
  Value lowerConvolution(const Frame& frame, const Instruction& i);
  Value lowerReduceWindow(const Frame& frame, const Instruction& i);
  Value windowValue(const Instruction& i, const Value& x, const Value& start,
                    const std::string& region, const std::vector<Window>& windows);
  Value lowerSelectAndScatter(const Frame& frame, const Instruction& i);
  friend class Convolution;

  // --- lowering_lookup.cpp: gather, scatter ---
  std::optional<Value> lowerLookup(const Frame& frame, const Instruction& i);
  std::optional<Sizes> knownStart(const Value& indices, const Sizes& map, const Sizes& sizes) const;
  std::optional<Value> lowerKnownGather(const Frame& frame, const Instruction& i);
  std::optional<Value> lowerKnownScatter(const Frame& frame, const Instruction& i);
  Value lowerGather(const Frame& frame, const Instruction& i);
  Value lowerScatter(const Frame& frame, const Instruction& i);
  Value scattered(const Frame& frame, const Instruction& i, const Value& target,
                  const Value& updates, const std::string& combined);
  Value indexValueOf(const Value& known);  // of a table

  // --- lowering_order.cpp: topk, sort, the greatest and its place ---
  std::optional<Value> lowerOrder(Frame& frame, const Instruction& i);
  // The greatest or least k along a dimension, which becomes the last, and their places.
  std::pair<std::string, std::string> ordered(const std::string& x, std::size_t dim, std::int64_t k,
                                              bool largest);
  // `start` more than places that ordered() gave.
  Value placesValue(const std::string& places, const Shape& shape, const std::vector<int>& labels,
                    std::int64_t start) const;
  Value alongPlaces(const Value& x, std::size_t dim, const std::string& places,
                    const std::vector<int>& labels);
  Value lowerTopK(const Frame& frame, const Instruction& i);
  Value lowerSort(const Frame& frame, const Instruction& i);
  Value lowerGreatest(const Frame& frame, const Instruction& i);
  std::optional<Value> greatestOfPieces(const Instruction& i, const Value& x, const Value& places,
                                        std::size_t dim, bool greater);
  // Whether a region of (value, place, value, place) chooses the greater one, of equal ones the
  // first (true), or the less one (false).
  std::optional<bool> choosesGreater(const Computation& region);
  // Places as numbers.
  std::string placeNumbers(const std::string& places, std::int64_t count);

  // --- lowering_positions.cpp: places that depend on the input ---
  // 1 where the value, moved into [0, count), is the position along a new last dimension, else 0.
  // Without `moved`, values that are not in it have only zeros.
  std::string positionRows(const Value& v, std::int64_t count, bool moved);
  std::optional<Value> movingSlice(const Frame& frame, const Instruction& i);
  std::optional<Value> movingUpdate(const Frame& frame, const Instruction& i);
  // Which element of its operand a gather reads, or a scatter writes: along some dimensions they
  // are chosen by coordinates, along some they go along with the indices.
  struct Coordinates {
    Sizes map, batching, indexBatching, collapsed;
    std::vector<Value> values;  // for each of `map`, of the indices' sizes
    Sizes indexSizes;
  };
  Coordinates coordinatesOf(const Instruction& i, const Value& indices, const Sizes& sizes,
                            const char* map, const char* collapsed, const char* batching,
                            const char* indexBatching);
  Value computedGather(const Instruction& i, const Value& table, const Coordinates& c,
                       const Sizes& offset, const Sizes& window);
  Value computedScatter(const Instruction& i, const Value& target, const Value& updates,
                        const Coordinates& c, const Sizes& window, const std::string& combined);
  // Of operands as taken() has them: what is 1 where the last one is taken, and the last one, both
  // with all dimensions, those of the result first.
  std::pair<std::string, std::string> spread(const std::vector<std::string>& operands,
                                             const std::string& equation);
  std::string combinedScatter(const Instruction& i, const Value& target,
                              const std::vector<std::string>& operands, const std::string& equation,
                              const std::string& combined);

  // --- lowering_collectives.cpp ---
  std::optional<Value> lowerCollective(Frame& frame, const Instruction& i);
  bool alikeOnAll(const std::string& communication, const Value& x);
  // Whether a value is the same on all devices whatever the input is, by what it is computed of.
  bool isSameOnAll(const Value& v, const std::string& path);
  std::vector<std::uint32_t> sameDevices(const std::string& tensor);
  std::vector<std::vector<std::int64_t>> groupsOf(const Instruction& i) const;
  // What every member's operand is known to be, which this one's is `in`.
  const Shared::Told& told(const std::string& communication, const std::string& in);
  Value communicated(const Frame& frame, const Instruction& i, const std::string& op,
                     const Value& x, const NodeAttributes& attributes, const Sizes& sizes,
                     std::size_t k);
  std::optional<Value> permutedTable(const std::string& communication, const Value& x,
                                     const std::vector<std::int64_t>& sourceOf,
                                     std::size_t meeting);
  Value permuted(const Frame& frame, const Instruction& i, const Value& x, std::size_t k);

  // What an all-gather made, by its node: of what, on which devices in this order, along which
  // dimension.
  struct Gathered {
    std::string in, communication;
    std::vector<std::int64_t> members;
    std::vector<std::vector<std::int64_t>> groups;  // of all devices; `members` is one of them
    NodeAttributes group;
    std::size_t dim = 0;
    std::string places;  // of places that are counted from a start: without it
  };
  std::map<std::size_t, Gathered> gathered_;
  // By the node of a communication the groups in which all devices meet.
  std::map<std::size_t, std::vector<std::vector<std::int64_t>>> groupsOfNode_;
  std::map<std::string, std::vector<std::uint32_t>> sameDevices_;

  const Module& module_;
  std::string file_;
  Shared& shared_;
  Devices devices_;
  const Grouping* grouping_;
  // For integer tensors that hold elements of a parameter: which.
  std::map<std::string, std::size_t> parameterOf_;
  // Of integer constants: the least and the greatest element, plus 1.
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> constantRanges_;
  // Of integers that are results of functions of which nothing is known: their types.
  std::map<std::string, std::string> resultTypes_;
  std::map<std::string, std::string> numbers_;  // asNumber()
  // The tensor of a known value that is not alike everywhere, by its content, which is kept.
  struct KnownNode {
    Value content;
    std::string name;
    std::uint64_t serial = 0;  // GraphTensor::serial
  };
  std::map<std::pair<const void*, bool>, KnownNode> knownNodes_;
  std::string path_, operation_;  // of the instruction that is lowered: op_name with the calls'
  std::size_t instructions_ = 0;
  int depth_ = 0;
};

}  // namespace shardproof::hlo
