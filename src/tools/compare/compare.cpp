// SPDX-License-Identifier: Apache-2.0
#include "compare/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

#include "compare/measure.h"
#include "compare/sketch.h"
#include "shardproof/error.h"

namespace shardproof::compare {
namespace {

// Roundings of one number that are allowed wherever it is: each side rounds its result once, and
// sums of few numbers in another order differ by as much, which a draw may miss by chance.
constexpr double kRoundings = 4;
// Of fewer elements a few draws tell little: the median of the tensors of its kind counts as well.
constexpr std::size_t kFewElements = 64;
// The largest of k draws of one number is a rough estimate of how far it moves; of more numbers
// their norm is a better one. With this a number of three draws may be 2.7 times as far away. If it
// moves as a normal one does, that makes a false alarm of about one in a thousand, and not of one
// in seventy.
constexpr std::size_t kVeryFewElements = 4;
constexpr double kRoughness = 3;
constexpr std::size_t kLarge = std::size_t{1} << 26;  // elements; measured by all threads
constexpr char kNew[] = ".new";                       // ends names of what a step leaves

std::string unmeasuredText(const Merged& merged) {
  return merged.obstacle.empty()
             ? "has integers from 2^53 on, or numbers whose squares doubles do not hold"
             : merged.obstacle;
}

// One tensor of the reference, in one call or in all of them.
struct Item {
  std::string name;  // in the traces
  const Tensor* reference = nullptr;
  const Tensor* candidate = nullptr;
  std::optional<std::int64_t> call;
  TensorReport report;
  double norm = 0;       // of the reference
  double perturbed = 0;  // absolute
  double tolerance = 0;  // absolute
  std::size_t elements = 0;
  double apart = 0;  // copies of the reference, or of a perturbed one, absolute
  bool finite = true;
};

std::vector<const Piece*> piecesOf(const Tensor& tensor, std::optional<std::int64_t> call) {
  std::vector<const Piece*> pieces;
  for (const Piece& piece : tensor.pieces)
    if (!call || piece.call == *call) pieces.push_back(&piece);
  std::sort(pieces.begin(), pieces.end(), [](const Piece* a, const Piece* b) {
    return std::pair(a->rank, a->call) < std::pair(b->rank, b->call);
  });
  return pieces;
}

std::string shapeText(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

std::string placeText(std::size_t position, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> at(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    at[d] = static_cast<std::int64_t>(position % static_cast<std::size_t>(shape[d]));
    position /= static_cast<std::size_t>(shape[d]);
  }
  return shapeText(at);
}

// Calls `work(i)` for all i, in parallel where OpenMP is there; then throws what the first failing
// one threw.
template <class Work>
void forAll(std::size_t count, [[maybe_unused]] bool parallel, const Work& work) {
  std::vector<std::exception_ptr> failures(count);
#pragma omp parallel for schedule(dynamic) if (parallel)
  for (std::size_t i = 0; i < count; ++i) {
    try {
      work(i);
    } catch (...) {
      failures[i] = std::current_exception();
    }
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Comparer {
 public:
  Comparer(const std::string& reference, const std::string& candidate, const Options& options)
      : options_(options), reference_(readTrace(reference)), candidate_(readTrace(candidate)) {
    if (reference_.isolated)
      throw InputError(reference, "",
                       "its modules took another reference's numbers (--isolate), expected an "
                       "ordinary trace");
    for (const std::string& directory : perturbedOf(reference))
      draws_.push_back(readTrace(directory));
    if (draws_.empty())
      throw InputError(reference, "",
                       "has no perturbed traces (draw1, draw2, ...), expected some, as "
                       "python -m shardproof.torch.trace --perturb 3 writes: the tolerance of each "
                       "tensor comes from them");
    result_.reference = reference;
    result_.candidate = candidate;
    result_.options = options;
    result_.draws = draws_.size();
  }

  Comparison run() {
    list();
    forAllItems([&](Item& item, bool parallel) { perturb(item, parallel); });
    setTolerances();
    // Parameters before the step first: others have their layout.
    forAllItems([&](Item& item, bool parallel) {
      if (!hasLayoutOfAnother(item)) judge(item, parallel);
    });
    for (const Item& item : items_)
      if (!hasLayoutOfAnother(item)) layouts_[item.name] = layoutsOf_[&item];
    forAllItems([&](Item& item, bool parallel) {
      if (hasLayoutOfAnother(item)) judge(item, parallel);
    });
    finish();
    return std::move(result_);
  }

 private:
  static bool hasLayoutOfAnother(const Item& item) {
    return item.candidate != nullptr && !item.candidate->like.empty();
  }

  // The tensors of both sides, by name.
  void list() {
    for (const auto& [name, tensor] : reference_.tensors) {
      const auto other = candidate_.tensors.find(name);
      const Tensor* candidate = other == candidate_.tensors.end() ? nullptr : &other->second;
      const std::size_t calls = tensor.calls();
      for (std::size_t call = 0; call < calls; ++call) {
        Item item;
        item.name = name;
        item.reference = &tensor;
        item.candidate = candidate;
        if (calls > 1) item.call = static_cast<std::int64_t>(call);
        const std::vector<const Piece*> pieces = piecesOf(tensor, item.call);
        if (pieces.empty()) continue;
        item.report.name = name + (calls > 1 ? "#" + std::to_string(call) : "");
        item.report.base = name;
        item.report.call = item.call;
        item.report.module = tensor.module;
        item.report.kind = tensor.kind;
        item.report.dtype = pieces.front()->dtype;
        item.report.shape = pieces.front()->shape;
        item.report.order = pieces.front()->order;
        for (const Piece* piece : pieces)
          item.report.order = std::min(item.report.order, piece->order);
        items_.push_back(std::move(item));
      }
    }
    std::sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
      return std::pair(a.report.order, a.report.name) < std::pair(b.report.order, b.report.name);
    });
    for (Item& item : items_) layoutsOf_[&item];  // no thread adds one
  }

  template <class Work>
  void forAllItems(const Work& work) {
    std::vector<Item*> small, large;
    for (Item& item : items_) {
      std::size_t n = 0;
      for (const Piece& piece : item.reference->pieces) n = std::max(n, piece.stored->count);
      (n >= kLarge ? large : small).push_back(&item);
    }
    for (Item* item : large) work(*item, true);
    forAll(small.size(), true, [&](std::size_t i) { work(*small[i], false); });
  }

  // How far the perturbed references are away.
  void perturb(Item& item, bool parallel) {
    const std::vector<const Piece*> pieces = piecesOf(*item.reference, item.call);
    if (!pieces.front()->unknown.empty()) {
      item.report.status = Status::kNotCompared;
      item.report.message = "the reference has several ranks, and its layout is not known";
      return;
    }
    const Layout layout = layoutOf(reference_, pieces, 1, {});
    item.elements = layout.elements();
    for (const Trace& draw : draws_) {
      const auto other = draw.tensors.find(item.name);
      std::vector<const Piece*> moved;
      if (other != draw.tensors.end()) moved = piecesOf(other->second, item.call);
      if (moved.empty() || moved.front()->shape != layout.shape) {
        item.report.status = Status::kNotCompared;
        item.report.message = (moved.empty() ? "is not in " : "has another shape in ") +
                              draw.directory + ", the perturbed reference";
        return;
      }
      if (moved.front()->dtype != item.report.dtype) {
        item.report.status = Status::kNotCompared;
        item.report.message = std::string("is ") + toString(moved.front()->dtype) + " in " +
                              draw.directory + ", the perturbed reference";
        return;
      }
      const Measured found = measure(layout, layoutOf(draw, moved, 1, {}), parallel);
      item.norm = root(found.reference.squared);
      item.perturbed = std::max(item.perturbed, root(found.difference));
      if (found.reference.notFinite != 0 || found.other.notFinite != 0) item.finite = false;
      if (found.reference.missing != 0)
        throw InputError(reference_.directory, "",
                         item.report.name + " has a gap: no rank has the element at " +
                             placeText(found.reference.firstMissing, layout.shape) + " of shape " +
                             shapeText(layout.shape));
      if (found.reference.unmeasured() || found.other.unmeasured()) {
        item.report.status = Status::kNotCompared;
        item.report.message =
            unmeasuredText(found.reference.unmeasured() ? found.reference : found.other);
        return;
      }
      if (found.other.missing != 0) {  // it would make the tolerance large
        item.report.status = Status::kNotCompared;
        item.report.message = "has a gap in " + draw.directory + ", the perturbed reference";
        return;
      }
      for (const Merged* merged : {&found.reference, &found.other})
        for (const ReplicaError& replica : merged->replicas)
          item.apart = std::max(item.apart, root(replica.squared));
    }
  }

  void setTolerances() {
    std::array<std::vector<double>, kKindCount> relative;
    std::array<std::vector<double>, kKindCount> sizes;
    for (const Item& item : items_) {
      if (item.report.status != Status::kAgrees || !item.finite || item.norm == 0 ||
          !isFloat(item.report.dtype))
        continue;
      const auto kind = static_cast<std::size_t>(item.report.kind);
      relative[kind].push_back(item.perturbed / item.norm);
      sizes[kind].push_back(item.norm / std::sqrt(static_cast<double>(item.elements)));
    }
    std::array<double, kKindCount> usual{};
    for (std::size_t k = 0; k < kKindCount; ++k) {
      usual[k] = median(relative[k]);
      usualSize_[k] = median(sizes[k]);
    }
    const double coarsest = coarsestEpsilon();
    for (Item& item : items_) {
      double moved = item.perturbed;
      const bool isFew = isFloat(item.report.dtype) && item.elements < kFewElements;
      if (isFew) {
        moved = std::max(moved, usual[static_cast<std::size_t>(item.report.kind)] * item.norm);
        if (item.elements < kVeryFewElements)
          moved *= 1 + kRoughness / std::sqrt(static_cast<double>(
                                        std::max<std::size_t>(1, item.elements) * draws_.size()));
      }
      const double least = kRoundings * epsilon(item.report.dtype) * item.norm;
      item.tolerance = std::max(options_.factor * moved, least);
      // A number that was rounded to a coarser precision on its way moves by a step of that, or
      // not.
      if (isFew && item.perturbed <= least && isComputed(item.report.kind))
        item.tolerance = std::max(item.tolerance, coarsest * item.norm);
      const double unit = item.norm > 0 ? item.norm : 1;
      item.report.perturbed = item.perturbed / unit;
      item.report.tolerance = item.tolerance / unit;
      if (item.report.status == Status::kAgrees && item.apart > item.tolerance) {
        item.report.status = Status::kNotCompared;
        item.report.message = "ranks of the reference have copies that differ";
      }
    }
  }

  static bool isComputed(Kind kind) {
    return kind != Kind::kBatch && kind != Kind::kInitial && kind != Kind::kOptimizer;
  }

  // Of the dtypes in which the reference computes, but for float8, of which there are scales.
  double coarsestEpsilon() const {
    double coarsest = 0;
    for (const Item& item : items_)
      if (bytesOfElement(item.report.dtype) > 1)
        coarsest = std::max(coarsest, epsilon(item.report.dtype));
    return coarsest;
  }

  // Whether agreement within the tolerance would show nothing. A tensor that is zero but for
  // rounding (the gradient of a bias of attention's keys) is moved by more than its norm, and yet
  // by nothing beside the others of its kind: that it is zero is then shown.
  bool showsNothing(const Item& item) const {
    const double size =
        item.tolerance / std::sqrt(std::max<double>(1, static_cast<double>(item.elements)));
    if (!std::isfinite(item.norm) || !std::isfinite(item.tolerance)) return true;
    return item.tolerance > options_.bound * item.norm &&
           size > options_.bound * usualSize_[static_cast<std::size_t>(item.report.kind)];
  }

  void judge(Item& item, bool parallel) {
    TensorReport& report = item.report;
    if (report.status != Status::kAgrees) return;
    if (item.candidate == nullptr) {
      report.status = Status::kMissing;
      report.message = "is in no trace of the candidate";
      return;
    }
    const std::size_t calls = item.candidate->calls();
    const bool perCall = item.call.has_value();
    if (perCall && calls != item.reference->calls()) {
      const std::string here = std::to_string(calls) + " times",
                        there = std::to_string(item.reference->calls()) + " times";
      if (isActivation(report.kind)) {
        report.status = Status::kNotCompared;
        report.message = "the module is called " + here + ", in the reference " + there;
        report.decides = false;
      } else {
        report.status = Status::kDiffers;
        report.message = "the candidate has it " + here + ", the reference " + there;
      }
      return;
    }
    const std::vector<const Piece*> pieces = piecesOf(*item.candidate, item.call);
    if (pieces.empty()) {
      report.status = Status::kMissing;
      report.message = "call " + std::to_string(*item.call) + " is in no trace of the candidate";
      return;
    }
    const bool known = pieces.front()->unknown.empty() && (perCall || calls == 1);
    const std::string& like = item.candidate->like;
    report.replaced = pieces.front()->replaced;
    for (const Piece* piece : pieces)
      if (piece->replaced == Replaced::kNot || piece->replaced == Replaced::kByShape)
        report.replaced = report.replaced == Replaced::kNot ? Replaced::kNot : piece->replaced;
    report.decides = known ? !isGradientOfActivation(report.kind)
                           : !isActivation(report.kind) && report.kind != Kind::kResult;
    std::vector<std::vector<Choice>> choices =
        known ? std::vector<std::vector<Choice>>{{}}
              : choicesFor(candidate_, pieces, perCall ? 1 : calls, report.shape,
                           isActivation(report.kind) || report.kind == Kind::kResult);
    if (!known && !like.empty()) {
      const auto found = layouts_.find(like);
      if (found != layouts_.end()) choices = found->second;
      if (choices.empty()) {
        report.status = Status::kNotCompared;
        report.message = "has the layout of " + like + ", which is not found";
        return;
      }
    }
    if (known && pieces.front()->shape != report.shape) {
      report.status = Status::kDiffers;
      report.message = "has the shape " + shapeText(pieces.front()->shape) + ", in the reference " +
                       shapeText(report.shape);
      return;
    }
    std::optional<Finding> best, filling;
    for (const std::vector<Choice>& chosen : choices) {
      const Finding found = tried(item, pieces, perCall ? 1 : calls, chosen, parallel);
      if (!best || found.distance < best->distance) best = found;
      if (fills(item, found) && (!filling || found.distance < filling->distance)) filling = found;
      if (!found.fits) continue;
      layoutsOf_.at(&item).push_back(chosen);
      if (like.empty() && report.kind == Kind::kInitial && !known) continue;  // all that fit
      break;
    }
    if (!best) {
      report.status = report.decides ? Status::kDiffers : Status::kUnplaced;
      report.message = "local tensors of shape " + shapeText(pieces.front()->shape) +
                       " do not make the reference's " + shapeText(report.shape);
      return;
    }
    accept(item, *best);
    const bool isFound = report.status == Status::kAgrees && (known || !showsNothing(item));
    if (isFound || (known && !isGradientOfActivation(report.kind)))
      report.placed = placedAs(*best, known ? Replaced::kDeclared : Replaced::kByNumbers);
    else if (filling) report.placed = placedAs(*filling, Replaced::kByShape);
    if (report.placed) report.placed->calls = perCall ? 1 : calls;
  }

  struct Finding {
    std::vector<Choice> choices;
    double scale = 1;
    double distance = 0;  // absolute
    Measured measured;
    bool fits = false;
  };

  static Placed placedAs(const Finding& found, Replaced by) {
    return {by, found.choices, found.scale, 1};
  }

  // Whether the parts make a whole tensor with copies that are equal, whatever its numbers are.
  // Summands do not count: any numbers are some.
  bool fills(const Item& item, const Finding& found) const {
    const bool hasSums =
        std::any_of(found.choices.begin(), found.choices.end(), [](const Choice& choice) {
          return choice.along == Along::kSum || choice.along == Along::kMean;
        });
    const Merged& merged = found.measured.other;
    return !hasSums && std::isfinite(found.distance) && merged.missing == 0 &&
           std::all_of(merged.replicas.begin(), merged.replicas.end(), [&](const auto& replica) {
             return root(replica.squared) <= item.tolerance;
           });
  }

  Finding tried(const Item& item, const std::vector<const Piece*>& pieces, std::size_t calls,
                const std::vector<Choice>& chosen, bool parallel) const {
    const Layout reference = layoutOf(reference_, piecesOf(*item.reference, item.call), 1, {});
    Layout layout = layoutOf(candidate_, pieces, calls, chosen);
    Finding found;
    found.choices = chosen;
    if (layout.shape != reference.shape) {
      found.distance = std::numeric_limits<double>::infinity();
      return found;
    }
    const auto measured = [&] {
      found.measured = measure(reference, layout, parallel);
      found.distance = root(found.measured.difference);
      found.fits = fits(item, found);
    };
    measured();
    if (!found.fits && isGradientOfActivation(item.report.kind) && found.measured.other.squared > 0)
      if (const double scale = scaleNear(
              static_cast<double>(found.measured.product / found.measured.other.squared), calls);
          scale != 1) {
        found.scale = scale;
        layout.scale *= scale;
        measured();
      }
    return found;
  }

  bool fits(const Item& item, const Finding& found) const {
    const Measured& m = found.measured;
    if (m.reference.notFinite == 0 && m.other.notFinite != 0) return false;
    if (m.other.missing != 0 || !(found.distance <= item.tolerance)) return false;
    return std::all_of(m.other.replicas.begin(), m.other.replicas.end(), [&](const auto& replica) {
      return root(replica.squared) <= item.tolerance;
    });
  }

  // A product of sizes of axes and of calls, or its reciprocal, within 5 % of `ratio`; else 1.
  double scaleNear(double ratio, std::size_t calls) const {
    std::set<double> scales = {1, static_cast<double>(calls)};
    for (const Axis& axis : candidate_.mesh) {
      const std::set<double> before = scales;
      for (const double scale : before) scales.insert(scale * static_cast<double>(axis.size));
    }
    for (const double scale : scales)
      for (const double s : {scale, 1 / scale})
        if (std::abs(ratio - s) < 0.05 * s) return s;
    return 1;
  }

  void accept(Item& item, const Finding& found) const {
    TensorReport& report = item.report;
    const double unit = item.norm > 0 ? item.norm : 1;
    report.error = found.distance / unit;
    report.layout = describe(candidate_, found.choices);
    if (found.scale != 1)
      report.layout += (report.layout.empty() ? "times " : ", times ") +
                       std::to_string(found.scale).substr(0, 8);
    const Merged& merged = found.measured.other;
    for (const ReplicaError& replica : merged.replicas) {
      const double distance = root(replica.squared);
      if (item.finite && distance <= item.tolerance) ++report.replicasWithin;
      else report.replicas.push_back({replica.first, replica.rank, distance / unit});
    }
    if (merged.unmeasured()) {
      report.status = Status::kNotCompared;
      report.message = unmeasuredText(merged);
      return;
    }
    const bool isFinding = merged.missing != 0 || !report.replicas.empty() ||
                           (found.measured.reference.notFinite == 0 && merged.notFinite != 0);
    if (!item.finite && !isFinding) {
      report.status = found.distance == 0 && item.apart == 0 ? Status::kAgrees : Status::kUncertain;
      report.message = "the reference is not finite";
      return;
    }
    if (found.fits && !isFinding) {
      if (showsNothing(item)) {
        report.status = Status::kUncertain;
        report.message = "rounding alone moves it as far as a mistake would";
      }
      return;
    }
    report.status = report.decides ? Status::kDiffers : Status::kUnplaced;
    if (merged.missing != 0)
      report.message = "has a gap: no rank has the element at " +
                       placeText(merged.firstMissing, report.shape) + " (" +
                       std::to_string(merged.missing) + " elements)";
    else if (merged.notFinite != 0)
      report.message = std::to_string(merged.notFinite) + " elements are not finite";
    else if (!report.replicas.empty()) report.message = "ranks have copies that differ";
    else if (!report.decides) report.message = "no layout that its shape allows fits";
    const long double square = found.measured.reference.squared;
    if (report.status != Status::kDiffers || !report.message.empty() || !(square > 0)) return;
    // Of a multiple the rest is rounding.
    const long double ratio = found.measured.product / square;
    const long double rest = found.measured.other.squared - ratio * found.measured.product;
    const auto factor = static_cast<double>(ratio);
    if (root(std::max<long double>(rest, 0)) > item.tolerance * std::max(1.0, std::abs(factor)))
      return;
    report.ratio = factor;
    std::ostringstream text;
    text.precision(4);
    text << "it is " << factor << " times the reference's";
    report.message = text.str();
  }

  void finish() {
    std::size_t decided = 0, uncertain = 0;
    std::vector<std::string> unrecorded;
    bool differs = false;
    const bool partial = reference_.partial || candidate_.partial;
    const bool sameOptimizers = sameNames(Kind::kOptimizer);
    for (Item& item : items_) {
      TensorReport& report = item.report;
      if (report.status == Status::kMissing) {
        report.decides = !partial && !isActivation(report.kind) &&
                         report.kind != Kind::kUnclipped && report.kind != Kind::kInitial &&
                         report.kind != Kind::kOptimizer && !isOfMainCopy(report.kind);
        if (!partial && !report.decides && isNeeded(item)) unrecorded.push_back(report.name);
      } else if (report.decides && report.status == Status::kAgrees) {
        if (const std::optional<std::int64_t> rank = rankWithout(item)) {
          report.status = Status::kMissing;
          report.message =
              "rank " + std::to_string(*rank) + " has it before the step, and not after it";
        }
      }
      if (report.kind == Kind::kOptimizer && !sameOptimizers) {
        report.decides = false;
        if (report.status == Status::kDiffers) report.status = Status::kNotCompared;
        report.message = "the optimizers of the two sides have other groups";
      }
      if (report.kind == Kind::kBuffer && !item.reference->changed &&
          !(item.candidate && item.candidate->changed)) {
        report.decides = false;
        if (report.status != Status::kAgrees) report.status = Status::kNotCompared;
        report.message = "the step does not change it";
      }
      if (!report.decides) continue;
      differs = differs || report.status == Status::kDiffers || report.status == Status::kMissing;
      uncertain += report.status == Status::kUncertain || report.status == Status::kNotCompared;
      decided += report.status == Status::kAgrees;
    }
    scaleGuesses();
    for (Item& item : items_) result_.tensors.push_back(std::move(item.report));
    result_.mesh = candidate_.mesh;
    if (!partial) differs = addExtra() || differs;
    if (candidate_.isolated) {
      result_.modules = judgeModules(result_.tensors, candidate_);
      // A layout that was a guess makes tensors differ.
      differs = differs && !result_.modules->wrong.empty();
    }
    for (const Trace* trace : {&reference_, &candidate_}) {
      for (const std::string& note : trace->notes)
        result_.notes.push_back(trace->directory + ": " + note);
      for (const auto& file : trace->files)
        for (const auto& [key, stored] : file->tensors())
          result_.bytes += stored.count * bytesOfElement(stored.dtype);
    }
    addSketches();
    std::set<std::int64_t> ranks;
    for (const auto& [name, tensor] : candidate_.tensors)
      for (const Piece& piece : tensor.pieces) ranks.insert(piece.rank);
    if (!partial && ranks.size() < static_cast<std::size_t>(candidate_.world))
      result_.reason = "a rank of the candidate has recorded nothing";
    else if (!unrecorded.empty())
      result_.reason =
          "the candidate did not record " + unrecorded.front() +
          (unrecorded.size() > 1 ? " and " + std::to_string(unrecorded.size() - 1) + " more tensors"
                                 : "") +
          ", which the reference has";
    else if (candidate_.isolated)
      result_.reason = "its modules took the reference's numbers, so each is compared by itself";
    else if (uncertain > 0)
      result_.reason = "of " + std::to_string(uncertain) +
                       " tensors agreement shows nothing, or they could not be compared";
    else if (decided == 0) result_.reason = "no tensor of known layout could be compared";
    result_.verdict = differs                  ? Agreement::kDiffers
                      : result_.reason.empty() ? Agreement::kAgrees
                                               : Agreement::kUndecided;
    if (differs) result_.reason.clear();
    grow();
  }

  // A note of how many tensors were compared by sketches.
  void addSketches() {
    const auto isSketch = [](const Tensor* tensor) {
      return tensor != nullptr && std::any_of(tensor->pieces.begin(), tensor->pieces.end(),
                                              [](const Piece& piece) { return piece.isSketch; });
    };
    std::size_t count = 0;
    for (std::size_t i = 0; i < items_.size(); ++i)
      count += result_.tensors[i].isCompared() &&
               (isSketch(items_[i].reference) || isSketch(items_[i].candidate));
    if (count > 0)
      result_.notes.push_back(std::to_string(count) +
                              (count == 1 ? " tensor was" : " tensors were") +
                              " compared by sketches of " + std::to_string(kBuckets) +
                              " sums, whose errors are estimates");
  }

  // Whether nothing shows, without this tensor, that the candidate begins as the reference does, or
  // goes on as it. A batch may have other names. Gradients before clipping do not count: a step may
  // clip by hand.
  bool isNeeded(const Item& item) const {
    switch (item.report.kind) {
      case Kind::kBatch:
        return std::none_of(candidate_.tensors.begin(), candidate_.tensors.end(),
                            [](const auto& entry) { return entry.second.kind == Kind::kBatch; });
      case Kind::kInitial:  // of what the step changes
        return reference_.tensors.contains(item.name + kNew);
      case Kind::kOptimizer:
        return true;
      default:
        return false;
    }
  }

  // A rank of the candidate that had what the step changes, and has no result of it.
  std::optional<std::int64_t> rankWithout(const Item& item) const {
    const Kind kind = item.report.kind;
    if ((kind != Kind::kParameter && kind != Kind::kState) || !item.name.ends_with(kNew) ||
        item.candidate == nullptr)
      return std::nullopt;
    const auto begin = candidate_.tensors.find(
        item.name.substr(0, item.name.size() - std::string_view(kNew).size()));
    if (begin == candidate_.tensors.end() || begin->second.kind != Kind::kInitial)
      return std::nullopt;
    std::set<std::int64_t> ranks;
    for (const Piece& piece : item.candidate->pieces) ranks.insert(piece.rank);
    for (const Piece& piece : begin->second.pieces)
      if (!ranks.contains(piece.rank)) return piece.rank;
    return std::nullopt;
  }

  // A rank's gradients of activations have one factor: where a layout is a guess, that of most.
  void scaleGuesses() {
    std::map<double, std::size_t> scales;
    const auto count = [&](bool guesses) {
      for (const Item& item : items_) {
        const std::optional<Placed>& placed = item.report.placed;
        if (isGradientOfActivation(item.report.kind) && placed && item.norm > 0 &&
            guesses == (placed->by == Replaced::kByShape) && (!guesses || placed->scale != 1))
          ++scales[placed->scale];
      }
    };
    count(false);
    if (scales.empty()) count(true);  // as far as the nearest layout shows
    if (scales.empty()) return;
    const double usual = std::max_element(scales.begin(), scales.end(), [](auto& a, auto& b) {
                           return a.second < b.second;
                         })->first;
    for (Item& item : items_)
      if (isGradientOfActivation(item.report.kind) && item.report.placed &&
          item.report.placed->by == Replaced::kByShape)
        item.report.placed->scale = usual;
  }

  bool sameNames(Kind kind) const {
    const auto names = [&](const Trace& trace) {
      std::set<std::string> found;
      for (const auto& [name, tensor] : trace.tensors)
        if (tensor.kind == kind) found.insert(name);
      return found;
    };
    return names(reference_) == names(candidate_);
  }

  // What only the candidate has. Returns whether the sides differ by that.
  bool addExtra() {
    bool differs = false;
    for (const auto& [name, tensor] : candidate_.tensors) {
      if (reference_.tensors.contains(name)) continue;
      if (isActivation(tensor.kind) || tensor.kind == Kind::kUnclipped ||
          isOfMainCopy(tensor.kind) || tensor.kind == Kind::kInitial ||
          tensor.kind == Kind::kOptimizer || (tensor.kind == Kind::kBuffer && !tensor.changed))
        continue;
      TensorReport report;
      report.name = report.base = name;
      report.kind = tensor.kind;
      report.shape = tensor.pieces.front().shape;
      report.dtype = tensor.pieces.front().dtype;
      report.order = std::numeric_limits<std::int64_t>::max();
      report.status = Status::kMissing;
      report.message = "is not in the reference";
      result_.tensors.push_back(std::move(report));
      differs = true;
    }
    return differs;
  }

  // The name of a layer: up to the first number between dots, as "layers.3" of "layers.3.ffn.w1".
  static std::string layerOf(const std::string& name) {
    std::size_t begin = 0;
    while (begin < name.size()) {
      const std::size_t end = std::min(name.find_first_of(". #", begin), name.size());
      if (end > begin && std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin),
                                     name.begin() + static_cast<std::ptrdiff_t>(end),
                                     [](unsigned char c) { return std::isdigit(c) != 0; }))
        return name.substr(0, end);
      begin = end + 1;
    }
    return "";
  }

  void grow() {
    struct Errors {
      std::vector<double> forwardPerturbed, forward, backwardPerturbed, backward;
    };
    std::vector<std::string> layers;
    std::map<std::string, Errors> errors;
    for (const TensorReport& report : result_.tensors) {
      const bool forward = report.kind == Kind::kOutput;
      const bool backward = report.kind == Kind::kGradient;
      const double unit = epsilon(report.dtype);
      const std::string layer = layerOf(report.name);
      if ((!forward && !backward) || layer.empty() || unit == 0 || !report.isCompared()) continue;
      if (!errors.contains(layer)) layers.push_back(layer);
      Errors& of = errors[layer];
      (forward ? of.forwardPerturbed : of.backwardPerturbed).push_back(report.perturbed / unit);
      (forward ? of.forward : of.backward).push_back(report.error / unit);
    }
    const auto middle = [](const std::vector<double>& values) {
      return values.empty() ? std::nullopt : std::optional(median(values));
    };
    for (const std::string& layer : layers) {
      const Errors& of = errors[layer];
      result_.growth.push_back({layer, middle(of.forwardPerturbed), middle(of.forward),
                                middle(of.backwardPerturbed), middle(of.backward)});
    }
  }

  Options options_;
  Trace reference_, candidate_;
  std::vector<Trace> draws_;
  std::vector<Item> items_;
  std::map<const Item*, std::vector<std::vector<Choice>>> layoutsOf_;
  std::map<std::string, std::vector<std::vector<Choice>>> layouts_;
  std::array<double, kKindCount> usualSize_{};
  Comparison result_;
};

}  // namespace

const char* toString(Status status) {
  switch (status) {
    case Status::kAgrees:
      return "agrees";
    case Status::kDiffers:
      return "differs";
    case Status::kMissing:
      return "missing";
    case Status::kUncertain:
      return "uncertain";
    case Status::kUnplaced:
      return "unplaced";
    case Status::kNotCompared:
      return "not-compared";
  }
  return "";
}

std::size_t Comparison::count(Status status, bool decides) const {
  return static_cast<std::size_t>(
      std::count_if(tensors.begin(), tensors.end(), [&](const TensorReport& report) {
        return report.status == status && report.decides == decides;
      }));
}

Comparison compareTraces(const std::string& reference, const std::string& candidate,
                         const Options& options) {
  return Comparer(reference, candidate, options).run();
}

}  // namespace shardproof::compare
