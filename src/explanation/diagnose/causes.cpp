// SPDX-License-Identifier: Apache-2.0
#include "diagnose/causes.h"
#include "ir/clone.h"
#include "ir/local_parts.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>

#include "diagnose/layouts.h"
#include "diagnose/search.h"
#include "diagnose/structure.h"
#include "diagnose/turning.h"
#include "diagnose/words.h"
#include "shardproof/error.h"
#include "util/index.h"
#include "writer/write_problem.h"

namespace shardproof::diagnose {

namespace {

constexpr std::size_t kMostCauses = 24;
constexpr std::size_t kMostNodes = 12;     // listed for a cause
constexpr std::size_t kMostCompared = 12;  // claims of one entry that are looked at
constexpr double kMostElements = 1e8;      // of an image of the whole plan: else one for each cause
constexpr double kShareOfTurning = 0.2;    // of the time, for where it may go wrong
constexpr double kShareOfGuess = 0.25;     // for the fix of a lemma that was inferred
constexpr std::size_t kMostGuesses = 3;
constexpr std::size_t kMostFirstDraws = 8;
constexpr double kShareOfDraws = 0.1;    // of the time, for draws that show an output to be wrong
constexpr std::size_t kMostOutputs = 3;  // that are looked at where no guess was of use
constexpr double kShareOfFirst = 0.6;    // of the time, for the first cause's fix
constexpr std::chrono::milliseconds kForLayout(500);  // for trying one of an input
constexpr std::size_t kMostLayoutsTried = 24;

class Collector {
 public:
  // `leaveScaled`: guesses whose scale is wrong come last, as a factor anywhere makes up for that.
  Collector(const Problem& problem, const Report& report, ProcessorClock::time_point end,
            bool leaveScaled)
      : problem_(problem),
        report_(report),
        end_(end),
        leaveScaled_(leaveScaled),
        secondsForImage_(kMostSecondsPerSecond *
                         std::chrono::duration<double>(end - ProcessorClock::now()).count() / 3) {
    try {
      auto image = std::make_unique<Image>(problem, secondsForImage_);
      if (image->elements() <= kMostElements) whole_ = bench(std::move(image));
      if (whole_ != nullptr) lookAtWhole();
    } catch (const Unsupported&) {  // each cause has an image of its own
    }
  }

  Causes run(const std::string& modelFile) {
    const std::vector<Defect>& defects =
        report_.defects.empty() ? report_.suspects : report_.defects;
    std::size_t guesses = 0;
    std::vector<std::size_t>& scaled = scaled_;
    for (std::size_t d = 0; d < defects.size(); ++d) {
      if (ProcessorClock::now() > end_) break;
      if (defects[d].entry < 0) continue;
      const bool guessed = problem_.plan.lineage[EntryId(defects[d].entry)].isGuess();
      if (guessed && whole_ != nullptr && !wrongOutputs_.empty() && guesses >= kMostGuesses)
        continue;
      if (one(defects[d], d, guessed && leaveScaled_) == Looked::kScaledGuess) scaled.push_back(d);
      else if (guessed) ++guesses;
    }
    if (causes_.empty() && whole_ != nullptr) {
      for (const EntryId e : wrongOutputs_) {
        if (ProcessorClock::now() > end_ || causes_.size() >= kMostOutputs) break;
        one(*whole_, e, tensorHere(e), std::nullopt, false);
      }
    }
    const auto lookAtScaled = [&] {
      for (const std::size_t d : scaled) {
        if (ProcessorClock::now() > end_ || outputsHold()) break;
        one(defects[d], d, false);
      }
    };
    if (causes_.empty()) lookAtScaled();
    if (!causes_.empty() && !lineageExplains(modelFile)) {
      findBehind();
      lookAtScaled();
      fixAll(modelFile);
    }
    fold();
    return std::move(result_);
  }

  // Whether guesses were left, and what was found without them is a change of what is there: what
  // is only missing somewhere may make up for a mistake elsewhere, as a factor does.
  bool isDoubtful() const {
    return !scaled_.empty() &&
           (causes_.empty() || std::any_of(causes_.begin(), causes_.end(), [](const Known& known) {
              return !known.edit ||
                     (known.edit->kind == Edit::Kind::kRedefine &&
                      (known.edit->make == Edit::Make::kScale ||
                       (known.edit->make == Edit::Make::kCollective && known.edit->tensor < 0)));
            }));
  }

 private:
  // An image and what it takes to look at it.
  struct Bench {
    Bench(std::unique_ptr<Image> of, ProcessorClock::time_point end)
        : image(std::move(of)), search(*image, model, end) {}
    // Once anything was looked at.
    const ModelIndex& index() {
      if (!places) places.emplace(model);
      return *places;
    }
    std::unique_ptr<Image> image;
    ModelValues model;
    std::optional<ModelIndex> places;
    Search search;
  };
  struct Known {
    std::size_t cause;
    std::optional<Edit> edit;  // in the image
    std::set<NodeRef> nodes;   // nearest to the failing claim
    Bench* bench;
  };

  Bench* bench(std::unique_ptr<Image> image) {
    return benches_.emplace_back(std::make_unique<Bench>(std::move(image), end_)).get();
  }

  enum class Looked : std::uint8_t { kDone, kScaledGuess };

  Looked one(const Defect& defect, std::size_t index, bool leaveScaled) {
    Bench* at = whole_;
    if (at == nullptr) {
      try {
        at = bench(std::make_unique<Image>(problem_, EntryId(defect.entry), secondsForImage_));
      } catch (const Unsupported&) {
        return Looked::kDone;
      }
    }
    const EntryId entry = EntryId(at->image->entryHere(defect.entry));
    return entry >= 0 ? one(*at, entry, defect.tensor, index, leaveScaled) : Looked::kDone;
  }

  // `index`: of the report's defect, if it has one. `leaveScaled`: where ranks have a multiple of
  // what is asked, nothing is done.
  Looked one(Bench& bench, EntryId entry, const std::string& tensor,
             std::optional<std::size_t> index, bool leaveScaled) {
    const Image& image = *bench.image;
    // A consequence: it holds with the fix of an earlier cause.
    for (const Known& known : causes_) {
      if (!known.edit || known.bench != &bench ||
          bench.search.holdsWith(entry, *known.edit) == Search::Holds::kNot)
        continue;
      add(result_.causes[known.cause], tensor, index);
      return Looked::kDone;
    }
    if (causes_.size() >= kMostCauses) return Looked::kDone;
    auto failing = bench.search.look(entry);
    if (!failing) return Looked::kDone;
    if (&bench == whole_) noteInputs(*failing);
    const std::set<NodeRef> nearest = nearestOf(*failing);
    for (const Known& known : causes_) {
      if (known.edit || known.nodes != nearest || known.bench != &bench) continue;
      add(result_.causes[known.cause], tensor, index);
      return Looked::kDone;
    }
    const Finder finder(image, *failing->numbers, bench.model, bench.index());
    const Match match = claimsAre(*failing, finder);
    if (leaveScaled && isScaled(match)) return Looked::kScaledGuess;
    const auto left = end_ - ProcessorClock::now();
    failing->turning = turningNodes(
        *failing, finder,
        ProcessorClock::now() +
            std::chrono::duration_cast<ProcessorClock::duration>(left * kShareOfTurning));
    std::erase_if(failing->turning, [&](NodeRef ref) { return image.isAdded(ref); });
    const auto until =
        ProcessorClock::now() +
        std::chrono::duration_cast<ProcessorClock::duration>(
            left * (image.problem().plan.lineage[entry].isGuess() ? kShareOfGuess : kShareOfFirst));
    const std::optional<Edit> edit = bench.search.fix(entry, *failing, match, until);
    // What was found may be a guess, and what it is about right.
    if (bench.image->problem().plan.lineage[entry].isGuess() && !heals(bench, edit))
      return Looked::kDone;
    std::optional<Edit> full;
    if (edit) full = inFull(image, *edit);
    Cause cause;
    cause.ranks = ranksOf(image, *failing);
    std::set<std::int64_t> microbatches;
    for (const std::size_t c : failing->claims)
      if (const std::int32_t m = failing->numbers->claim(c).microbatch; m >= 0)
        microbatches.insert(m);
    cause.microbatches = image.fullMicrobatches(microbatches);
    const Described words =
        describe(image, *failing, finder, match, cause.ranks, full ? &*full : nullptr);
    cause.kind = words.kind;
    cause.sentence = words.sentence;
    places(cause, image, *failing, full);
    if (full) cause.fix = {fixText(problem_, *full), false};
    found(cause, image, *failing, finder);
    causes_.push_back({result_.causes.size(), edit, nearest, &bench});
    result_.causes.push_back(std::move(cause));
    add(result_.causes.back(), tensor, index);
    return Looked::kDone;
  }

  static bool isScaled(const Match& match) {
    return (match.kind == Match::Kind::kMultiple || match.kind == Match::Kind::kPartial) &&
           !(match.ratio == Ratio());
  }

  // Whether no output of the whole image is wrong with the fixes of the causes so far.
  bool outputsHold() {
    if (whole_ == nullptr || causes_.empty()) return false;
    std::vector<Edit> edits;
    for (const Known& known : causes_) {
      if (!known.edit || known.bench != whole_) return false;
      edits.push_back(*known.edit);
    }
    const auto failing = failingIn(std::move(edits));
    return failing && std::none_of(failing->begin(), failing->end(), [&](EntryId e) {
             return whole_->image->problem().plan.lineage[e].role == Role::kOutput;
           });
  }

  // Which claims of the whole image do not hold: of what was inferred those are guesses that are
  // wrong, and nothing may rest on them. At the first draw that shows an output to be wrong: data
  // may hide it (a batch without labels), and then a wrong guess would look like a mistake.
  void lookAtWhole() {
    const auto start = ProcessorClock::now();
    const auto until = start + std::chrono::duration_cast<ProcessorClock::duration>((end_ - start) *
                                                                                    kShareOfDraws);
    bool can = lookAtDraw();
    for (std::size_t draw = 1; can && wrongOutputs_.empty() && draw < kMostFirstDraws; ++draw) {
      if (ProcessorClock::now() > until) break;
      whole_->model.beginAt(draw);
      can = lookAtDraw();
    }
    if (wrongOutputs_.empty() && whole_->model.firstDraw > 0) {
      whole_->model.beginAt(0);
      lookAtDraw();
    }
  }

  // Whether it could be executed.
  bool lookAtDraw() {
    const auto failing = failingIn({});
    if (!failing) return false;
    std::set<EntryId> untrue;
    for (const EntryId e : *failing) {
      const LineageEntry& entry = whole_->image->problem().plan.lineage[e];
      if (entry.role == Role::kOutput) wrongOutputs_.push_back(e);
      else if (entry.isGuess()) untrue.insert(e);
    }
    whole_->search.ignore(std::move(untrue));
    return true;
  }

  std::string tensorHere(EntryId entry) const {
    const Problem& here = whole_->image->problem();
    return here.names.text(here.model.graph.tensors[here.plan.lineage[entry].tensor].name);
  }

  // Whether fewer outputs of the whole image are wrong with an edit. Where there is no image of the
  // whole, or no output of it is wrong, nobody knows.
  bool heals(const Bench& bench, const std::optional<Edit>& edit) {
    if (&bench != whole_ || wrongOutputs_.empty()) return true;
    if (!edit) return false;
    const auto failing = failingIn({*edit});
    return failing &&
           static_cast<std::size_t>(std::count_if(failing->begin(), failing->end(), [&](EntryId e) {
             return whole_->image->problem().plan.lineage[e].role == Role::kOutput;
           })) < wrongOutputs_.size();
  }

  // Entries of the whole image that do not hold at one draw with these changes, in the order in
  // which one may rely on another; not known where it cannot be executed.
  std::optional<std::vector<EntryId>> failingIn(std::vector<Edit> edits) {
    std::set<EntryId> failing;
    try {
      Slice whole;
      whole.problem = cloneProblem(whole_->image->problem());
      if (!applyAll(*whole.problem, std::move(edits))) return std::nullopt;
      const Numbers numbers(whole, whole_->model, end_, Look::kRealsAtOneDraw);
      for (std::size_t c = 0; c < numbers.claims(); ++c)
        if (!numbers.holds(c)) failing.insert(EntryId(numbers.claim(c).entry));
    } catch (const std::runtime_error&) {  // of the executor: cannot run, out of time, too large
      return std::nullopt;
    } catch (const std::logic_error&) {  // an attribute that the operator does not take
      return std::nullopt;
    }
    std::vector<EntryId> ordered(failing.begin(), failing.end());
    std::sort(ordered.begin(), ordered.end(),
              [&](EntryId a, EntryId b) { return whole_->image->before(a, b); });
    return ordered;
  }

  // What of the whole image the claims that fail begin with, all of them.
  void noteInputs(const Search::Failing& failing) {
    std::set<EntryId> inputs;
    for (const EntryId e : failing.slice.entryOf)
      if (e.valid() && whole_->image->problem().plan.lineage[e].role == Role::kInput)
        inputs.insert(e);
    if (!commonInputs_) {
      commonInputs_ = std::move(inputs);
      return;
    }
    std::erase_if(*commonInputs_, [&](EntryId e) { return !inputs.contains(e); });
  }

  // Several mistakes, or one that nothing fixes, are one mistake in the lineage of an input where
  // everything holds with another layout of it: that is the cause then. What one change of a node
  // fixes is not looked at: a plan that is wrong may agree with a layout that is, too.
  bool lineageExplains(const std::string& modelFile) {
    if (whole_ == nullptr || !commonInputs_) return false;
    if (causes_.size() == 1 && causes_.front().edit) return false;
    const Image& image = *whole_->image;
    std::size_t tried = 0;
    for (const EntryId e : firstIds<EntryId>(problem_.plan.lineage.size())) {
      const EntryId here = EntryId(image.entryHere(e));
      if (!here.valid() || !commonInputs_->contains(here)) continue;
      for (const Layout& layout : otherLayouts(problem_, e)) {
        const auto shards = withLayout(image.problem(), here, layout);
        if (!shards || tried++ >= kMostLayoutsTried || !holdsWithShards(here, *shards)) continue;
        takeLayout(e, *withLayout(problem_, e, layout), modelFile);
        return true;
      }
    }
    return false;
  }

  // Whether all that the file says of the image holds then.
  bool holdsWithShards(EntryId entry, const std::vector<Shard>& shards) {
    try {
      Slice changed;
      changed.problem = cloneProblem(whole_->image->problem());
      changed.problem->plan.lineage[entry].shards = shards;
      const Numbers numbers(changed, whole_->model, ProcessorClock::now() + kForLayout,
                            Look::kRealsAtOneDraw);
      for (std::size_t c = 0; c < numbers.claims(); ++c)
        if (!numbers.holds(c) &&
            !changed.problem->plan.lineage[EntryId(numbers.claim(c).entry)].isGuess())
          return false;
      return numbers.claims() > 0;
    } catch (const std::runtime_error&) {  // of the executor
      return false;
    }
  }

  // One cause in the place of all.
  void takeLayout(EntryId entry, std::vector<Shard> shards, const std::string& modelFile) {
    const LineageEntry& e = problem_.plan.lineage[entry];
    const std::string place = "/lineage/" + std::to_string(entry.value),
                      tensor = problem_.names.text(problem_.model.graph.tensors[e.tensor].name);
    const auto [found, hasToBe] = shardTexts(problem_, e.shards, shards);
    Cause cause = std::move(result_.causes.front());
    for (std::size_t i = 1; i < result_.causes.size(); ++i) {
      const Cause& other = result_.causes[i];
      cause.defects.insert(cause.defects.end(), other.defects.begin(), other.defects.end());
      for (const std::string& t : other.tensors) add(cause, t, std::nullopt);
    }
    cause.kind = "input-lineage";
    cause.sentence = "what is computed from `" + tensor + "` is wrong, and right with another " +
                     "layout of it: input lineage " + place + " of `" + tensor + "` has " + found +
                     " where it has to have " + hasToBe;
    cause.fix = {place + " (input lineage of `" + tensor + "`) has " + hasToBe, false};
    readersFirst(cause, e);
    result_.causes.clear();
    result_.causes.push_back(std::move(cause));
    causes_.resize(1);
    causes_.front().edit.reset();
    try {
      const std::unique_ptr<Problem> fixed = cloneToFix();
      fixed->plan.lineage[entry].shards = std::move(shards);
      result_.fixedPlan = planText(*fixed, modelFile);
      result_.fixedModel = modelText(*fixed);
    } catch (const Unsupported&) {  // a number that no decimal says
    }
  }

  // The nodes that read the input, in the place of those that were suspected.
  void readersFirst(Cause& cause, const LineageEntry& entry) const {
    std::vector<NodePlace> readers;
    for (const ProgramId p : firstIds<ProgramId>(problem_.plan.programs.size())) {
      const Graph& g = problem_.plan.programs[p].graph;
      for (const NodeId n : firstIds<NodeId>(g.nodes.size()))
        for (const Operand& o : g.in(g.nodes[n])) {
          if (!o.present() || readers.size() >= kMostNodes || g.nodes[n].added >= 0) continue;
          const bool reads =
              std::any_of(entry.shards.begin(), entry.shards.end(), [&](const Shard& shard) {
                return std::any_of(shard.parts.begin(), shard.parts.end(), [&](const Part& part) {
                  return part.local == g.tensors[o.tensor].name;
                });
              });
          if (reads) readers.push_back(placeOf(problem_, {p, n}));
        }
    }
    if (!readers.empty()) cause.nodes = std::move(readers);
  }

  // Mistakes of which the report says nothing, as what they make wrong is computed from what is
  // wrong already: the image is executed as a whole with the fixes of the causes so far, and the
  // earliest claim that fails then has one more.
  void findBehind() {
    if (whole_ == nullptr) return;
    std::set<EntryId> seen;
    while (causes_.size() < kMostCauses && ProcessorClock::now() < end_) {
      std::vector<Edit> edits;
      for (const Known& known : causes_) {
        if (!known.edit) return;
        edits.push_back(*known.edit);
      }
      const std::size_t before = causes_.size();
      const EntryId entry = firstFailing(std::move(edits));
      if (entry < 0 || !seen.insert(entry).second) return;
      const Problem& here = whole_->image->problem();
      const TensorId tensor = here.plan.lineage[entry].tensor;
      one(*whole_, entry, here.names.text(here.model.graph.tensors[tensor].name), std::nullopt,
          false);
      if (causes_.size() == before) return;
    }
  }

  // With these changes of the image; none: no output fails, or it is not known.
  EntryId firstFailing(std::vector<Edit> edits) {
    // What one draw does not show is seen by the proof with all fixes.
    const auto failing = failingIn(std::move(edits));
    const auto& lineage = whole_->image->problem().plan.lineage;
    if (!failing || std::none_of(failing->begin(), failing->end(),
                                 [&](EntryId e) { return lineage[e].role == Role::kOutput; }))
      return EntryId();
    return *std::find_if(failing->begin(), failing->end(),
                         [&](EntryId e) { return !lineage[e].isGuess(); });
  }

  static void add(Cause& cause, const std::string& tensor, std::optional<std::size_t> index) {
    if (index) cause.defects.push_back(*index);
    if (std::find(cause.tensors.begin(), cause.tensors.end(), tensor) == cause.tensors.end())
      cause.tensors.push_back(tensor);
  }

  static std::set<NodeRef> nearestOf(const Search::Failing& failing) {
    std::set<NodeRef> nearest;
    for (std::size_t i = 0; i < failing.nodes.size(); ++i)
      if (failing.distance[i] == 0) nearest.insert(failing.nodes[i]);
    return nearest;
  }

  static std::vector<std::int64_t> ranksOf(const Image& image, const Search::Failing& failing) {
    std::set<Rank> ranks;
    for (const std::size_t c : failing.claims)
      for (const auto& part : failing.numbers->claim(c).parts) ranks.insert(part.rank);
    const std::vector<Rank> all = image.fullRanks({ranks.begin(), ranks.end()});
    return {all.begin(), all.end()};
  }

  // What they all are in the same way; nothing known where some are this and others that.
  static Match claimsAre(const Search::Failing& failing, const Finder& finder) {
    const Match first = finder.claim(failing.claims.front());
    const std::size_t step = std::max<std::size_t>(1, failing.claims.size() / kMostCompared);
    for (std::size_t i = step; i < failing.claims.size(); i += step) {
      const Match other = finder.claim(failing.claims[i]);
      if (other.kind != first.kind || other.axes != first.axes || !(other.ratio == first.ratio) ||
          other.tensor != first.tensor) {
        Match unknown = first;
        unknown.kind = Match::Kind::kUnknown;
        return unknown;
      }
    }
    return first;
  }

  // The fixed nodes, collectives, then all others, the nearest first; both ends of messages.
  void places(Cause& cause, const Image& image, const Search::Failing& failing,
              const std::optional<Edit>& edit) const {
    std::set<NodeRef> listed;
    std::set<std::pair<std::string, std::string>> sites;
    const auto list = [&](NodeRef ref) {
      if (cause.nodes.size() >= kMostNodes || !listed.insert(ref).second) return;
      if (problem_.plan.programs[ref.program].graph.nodes[ref.node].added >= 0) return;
      cause.nodes.push_back(placeOf(problem_, ref));
    };
    if (edit)
      for (const NodeRef ref : edit->nodes) list(ref);
    else
      for (const NodeRef ref : failing.turning) list(image.fullNode(ref));
    for (const bool communication : {true, false}) {
      for (std::size_t i = 0; i < failing.nodes.size(); ++i) {
        const NodeRef ref = image.fullNode(failing.nodes[i]);
        const Node& node = problem_.plan.programs[ref.program].graph.nodes[ref.node];
        const bool nearest = failing.distance[i] <= 1;
        if (communication ? node.communication >= 0 || nearest : true) list(ref);
      }
    }
  }

  // Of the first failing rank and microbatch, in the order of the computation.
  void found(Cause& cause, const Image& image, const Search::Failing& failing,
             const Finder& finder) const {
    constexpr std::size_t kMostFound = 24;
    const Numbers& numbers = *failing.numbers;
    const auto& claim = numbers.claim(failing.claims.front());
    const Rank rank = claim.parts.front().rank;
    Shown shown;
    try {
      shown = failing.numbers->show(failing.claims.front());
    } catch (const std::exception&) {  // no time or memory is left; the sentence stands without
    }
    if (!shown.expected.values.empty()) {
      Cause::Compared compared;
      compared.tensor = finder.tensorName(numbers.setup().problem.plan.lineage[claim.entry].tensor);
      compared.at = claim.low;
      compared.model = shown.expected;
      compared.plan = shown.actual;
      compared.rank = image.fullRanks({rank}).front();
      if (claim.microbatch >= 0)
        compared.microbatch = static_cast<std::int32_t>(image.fullMicrobatch(claim.microbatch));
      cause.compared = std::move(compared);
    }
    const auto& programs = numbers.setup().programs;
    const ProgramId p = programs.programOf(rank);
    const Graph& g = programs.program(rank).graph;
    const auto& layout = programs.layout(rank);
    const auto nameOf = [&](TensorId t) {
      return failing.slice.problem->names.text(g.tensors[t].name);
    };
    const auto tell = [&](TensorId t, NodePlace place, bool wrong,
                          std::vector<std::string> from = {}) {
      const bool each = g.tensors[t].perMicrobatch;
      const std::int32_t slot = layout.firstSlot[t] + (each ? std::max(claim.microbatch, 0) : 0);
      if (!numbers.local(rank, slot).known()) return;
      const Match match = finder.local(rank, slot);
      cause.found.push_back({std::move(place), nameOf(t),
                             match.kind == Match::Kind::kUnknown ? "" : finder.text(match), wrong,
                             std::move(from), shown.locals[slot]});
    };
    std::set<std::int32_t> told, claimed;
    for (const auto& part : claim.parts)
      if (part.rank == rank) claimed.insert(layout.tensorOfSlot[part.slot]);
    for (std::size_t n = 0; n < g.nodes.size() && cause.found.size() < kMostFound; ++n) {
      const NodePlace place =
          placeOf(problem_, image.fullNode(failing.slice.origin({p, NodeId(n)})));
      for (const Operand& o : g.in(g.nodes[n]))
        if (o.present() && g.tensors[o.tensor].kind != TensorKind::kProduced &&
            told.insert(o.tensor).second)
          tell(o.tensor, {}, false);
      std::vector<std::string> from;
      for (const Operand& o : g.in(g.nodes[n]))
        if (o.present()) from.push_back(nameOf(o.tensor));
      for (const TensorId t : g.out(g.nodes[n]))
        if (t >= 0 && told.insert(t).second) tell(t, place, claimed.contains(t), from);
    }
  }

  // What would be fixed in the same way is one mistake that was made several times.
  void fold() {
    // In the full plan: each may have an image of its own.
    std::vector<Edit> inPlan;  // of each cause; of one without an edit: any
    for (const Known& known : causes_)
      inPlan.push_back(known.edit ? inFull(*known.bench->image, *known.edit) : Edit());
    const auto readAt = [&](const Edit& e) {
      const NodeRef ref = e.nodes.front();
      const Graph& g = problem_.plan.programs[ref.program].graph;
      return g.in(g.nodes[ref.node])[e.index].tensor;
    };
    const auto alike = [&](const Edit& a, const Edit& b) {
      const auto operatorAt = [&](const Edit& e) { return placeOf(problem_, e.nodes.front()).op; };
      if (a.kind != b.kind) return false;
      // One tensor that is read in the place of another, by several.
      if (a.kind == Edit::Kind::kOperand && a.tensor >= 0)
        return a.tensor == b.tensor && readAt(a) == readAt(b) &&
               a.nodes.front().program == b.nodes.front().program;
      return a.make == b.make && a.attribute == b.attribute && a.communication == b.communication &&
             a.axes == b.axes && a.reduction == b.reduction && operatorAt(a) == operatorAt(b);
    };
    std::vector<Cause> folded;
    std::vector<std::pair<std::size_t, std::size_t>> firsts;  // of causes_, and in `folded`
    std::vector<std::size_t> more;
    for (std::size_t i = 0; i < causes_.size(); ++i) {
      Cause& cause = result_.causes[causes_[i].cause];
      const auto first = std::find_if(firsts.begin(), firsts.end(), [&](const auto& f) {
        const Known& other = causes_[f.first];
        return causes_[i].edit && other.edit && alike(inPlan[i], inPlan[f.first]) &&
               (folded[f.second].kind == cause.kind ||
                causes_[i].edit->kind == Edit::Kind::kOperand);
      });
      if (first == firsts.end()) {
        firsts.emplace_back(i, folded.size());
        folded.push_back(std::move(cause));
        more.push_back(0);
        continue;
      }
      Cause& into = folded[first->second];
      ++more[first->second];
      // Lines that run several times have one text.
      if (into.fix && cause.fix && into.fix->text.find(cause.fix->text) == std::string::npos)
        into.fix->text += "; " + cause.fix->text;
      for (const NodePlace& node : cause.nodes)
        if (into.nodes.size() < 2 * kMostNodes) into.nodes.push_back(node);
      const auto join = [](auto& to, const auto& from) {
        for (const auto& x : from)
          if (std::find(to.begin(), to.end(), x) == to.end()) to.push_back(x);
      };
      join(into.ranks, cause.ranks);
      join(into.microbatches, cause.microbatches);
      join(into.tensors, cause.tensors);
      join(into.defects, cause.defects);
    }
    for (std::size_t i = 0; i < folded.size(); ++i) {
      std::sort(folded[i].ranks.begin(), folded[i].ranks.end());
      std::sort(folded[i].microbatches.begin(), folded[i].microbatches.end());
      if (more[i] > 0)
        folded[i].sentence += "; the same in " + std::to_string(more[i]) +
                              (more[i] == 1 ? " more place" : " more places");
    }
    result_.causes = std::move(folded);
  }

  // One after the other; places behind inserted nodes are moved. False: one cannot be done.
  static bool applyAll(Problem& plan, std::vector<Edit> edits) {
    for (std::size_t i = 0; i < edits.size(); ++i) {
      const std::vector<NodeRef> places = edits[i].nodes;
      std::vector<std::size_t> sizes;
      for (const Program& program : plan.plan.programs) sizes.push_back(program.graph.nodes.size());
      if (!apply(plan, Correspondence(plan), edits[i])) return false;
      for (std::size_t j = i + 1; j < edits.size(); ++j) {
        for (NodeRef& ref : edits[j].nodes) {
          const auto p = at(ref.program);
          if (plan.plan.programs[p].graph.nodes.size() == sizes[p]) continue;
          ref.node =
              NodeId(ref.node + std::count_if(places.begin(), places.end(), [&](NodeRef other) {
                       return other.program == ref.program && other.node < ref.node;
                     }));
        }
      }
    }
    return true;
  }

  std::unique_ptr<Problem> cloneToFix() const {
    std::unique_ptr<Problem> fixed = cloneProblem(problem_);
    // Parts that were inferred are in no file, and what takes them out is not written.
    const auto& placed = fixed->plan.placed;
    if (std::any_of(placed.begin(), placed.end(), [&](const PlacedPart& part) {
          return !fixed->plan.lineage[part.entry].inferred;
        }))
      ir::makePartsOwn(*fixed);
    return fixed;
  }

  // One plan with the fixes of all causes.
  void fixAll(const std::string& modelFile) {
    std::vector<Edit> edits;
    for (const Known& known : causes_) {
      if (!known.edit) return;
      edits.push_back(inFull(*known.bench->image, *known.edit));
    }
    try {
      const std::unique_ptr<Problem> fixed = cloneToFix();
      if (!applyAll(*fixed, std::move(edits))) return;
      result_.fixedPlan = planText(*fixed, modelFile);
      result_.fixedModel = modelText(*fixed);
    } catch (const Unsupported&) {  // a number that no decimal says
    }
  }

  const Problem& problem_;
  const Report& report_;
  const ProcessorClock::time_point end_;
  const bool leaveScaled_;
  std::vector<std::size_t> scaled_;  // defects of the report that were left
  const double secondsForImage_;
  std::vector<std::unique_ptr<Bench>> benches_;
  Bench* whole_ = nullptr;             // of the image of the whole plan; none: that is too large
  std::vector<EntryId> wrongOutputs_;  // of it, the first first
  std::optional<std::set<EntryId>> commonInputs_;  // of it, which all failing claims begin with
  std::vector<Known> causes_;
  Causes result_;
};

}  // namespace

Causes causesOf(const Problem& problem, const Report& report, const std::string& modelFile,
                ProcessorClock::time_point end) {
  const std::vector<Defect>& defects = report.defects.empty() ? report.suspects : report.defects;
  if (defects.empty()) return {};
  if (std::any_of(defects.begin(), defects.end(),
                  [](const Defect& d) { return d.kind != DefectKind::kLineage; }))
    return structuralCauses(problem, report, modelFile);
  try {
    const bool guesses = std::any_of(defects.begin(), defects.end(), [&](const Defect& d) {
      return d.entry >= 0 && problem.plan.lineage[EntryId(d.entry)].isGuess();
    });
    if (!guesses) return Collector(problem, report, end, false).run(modelFile);
    const auto now = ProcessorClock::now();
    Collector first(problem, report, now + (end - now) / 2, true);
    Causes found = first.run(modelFile);
    return first.isDoubtful() ? Collector(problem, report, end, false).run(modelFile)
                              : std::move(found);
  } catch (const Unsupported&) {
    return {};
  }
}

}  // namespace shardproof::diagnose
