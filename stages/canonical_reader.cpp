// SPDX-License-Identifier: Apache-2.0
// The inverse of canonical.cpp. The bytes come from a file, so nothing about them is taken for
// granted: whatever does not lead to a stage on which reduction and execution stay within their
// arrays is refused.
#include "stages/canonical_reader.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/collectives.h"
#include "ops/registry.h"
#include "plan/checks.h"
#include "shardproof/error.h"
#include "util/index.h"
#include "util/shapes.h"

namespace shardproof {

namespace {

class FormReader {
 public:
  explicit FormReader(std::string_view bytes) : bytes_(bytes) {}

  Stage run() {
    readList([&] { readCollapsedAxis(); });
    readList([&] { readTensor(); });
    written_.resize(stage_.tensors.size());
    for (const StageTensorId t : firstIds<StageTensorId>(stage_.tensors.size()))
      written_[t] = stage_.tensors[t].origin != Origin::kComputed;
    readList([&] { readNode(); });
    readList([&] { stage_.claims.push_back(readEquation()); });
    for (const Equation& e : stage_.claims) {
      if (!written_[e.logical] || std::any_of(e.parts.begin(), e.parts.end(),
                                              [&](const auto& p) { return !written_[p.first]; })) {
        throw DamagedForm("a claim about what nothing computes");
      }
    }
    readList([&] { stage_.assumptions.push_back(readEquation()); });
    for (const Equation& e : stage_.assumptions) {
      const auto given = [&](const auto& p) {
        return stage_.tensors[p.first].origin == Origin::kBoundary ||
               stage_.tensors[p.first].origin == Origin::kConstant;
      };
      if (!std::all_of(e.parts.begin(), e.parts.end(), given)) {
        throw DamagedForm("an assumption about a local tensor that is given otherwise");
      }
    }
    if (next_ != bytes_.size()) throw DamagedForm("there is more after its end");
    stage_.entry = EntryId(0);
    return std::move(stage_);
  }

 private:
  void readCollapsedAxis() {
    CollapsedAxis collapsed;
    collapsed.size = static_cast<std::int32_t>(number(1, std::numeric_limits<std::int32_t>::max()));
    std::int64_t next = 0, total = 0;
    readList([&] {
      const std::int64_t c = number(next, collapsed.size - 1);
      if (next == 0 && c != 0) throw DamagedForm("an axis without its coordinate 0");
      const std::int64_t weight = number(1, collapsed.size - total);
      collapsed.kept.emplace_back(static_cast<std::int32_t>(c), weight);
      next = c + 1;
      total += weight;
    });
    if (total != collapsed.size)
      throw DamagedForm("the coordinates of an axis stand for more or fewer than it has");
    next = 0;
    readList([&] {
      const std::int64_t c = number(next, collapsed.size - 1);
      if (collapsed.weight(c) != 1)
        throw DamagedForm("a coordinate that stands for others is said to be a class by itself");
      collapsed.alone.push_back(static_cast<std::int32_t>(c));
      next = c + 1;
    });
    stage_.collapsedAxes.push_back(std::move(collapsed));
  }

  std::int64_t number(std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                      std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
    std::uint64_t u = 0;
    for (int shift = 0;; shift += 7) {
      if (next_ == bytes_.size()) throw DamagedForm("it ends too early");
      const auto byte = static_cast<unsigned char>(bytes_[next_++]);
      if (shift == 63 && byte > 1) throw DamagedForm("a number has more than 64 bits");
      u |= std::uint64_t{byte & 0x7FU} << shift;
      if (!(byte & 0x80U)) break;
    }
    const auto n = static_cast<std::int64_t>((u >> 1) ^ (~(u & 1) + 1));
    if (n < least || n > most) throw DamagedForm("a number is out of range");
    return n;
  }
  // A list has at most as many items as there are bytes left: nothing is reserved for a length that
  // is not true.
  std::size_t length() {
    const std::size_t n = at(number(0));
    if (n > bytes_.size() - next_) throw DamagedForm("a list is longer than the rest");
    return n;
  }
  template <class F>
  void readList(F&& item) {
    const std::size_t n = length();
    for (std::size_t i = 0; i < n; ++i) item();
  }
  template <class T = std::int64_t>
  std::vector<T> numbers(std::int64_t least = std::numeric_limits<T>::min(),
                         std::int64_t most = std::numeric_limits<T>::max()) {
    std::vector<T> list;
    readList([&] { list.push_back(static_cast<T>(number(least, most))); });
    return list;
  }
  std::string text() {
    const std::size_t n = length();
    std::string s(bytes_.substr(next_, n));
    next_ += n;
    return s;
  }
  Rational rational() {
    const std::string s = text();
    const std::size_t slash = s.find('/');
    const auto digits = [](std::string_view part) {
      return !part.empty() &&
             std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    };
    const std::string_view all = s, above = all.substr(0, slash),
                           unsignedAbove = above.substr(above.starts_with('-') ? 1 : 0);
    const std::string_view below = slash == std::string::npos ? "1" : all.substr(slash + 1);
    if (!digits(unsignedAbove) || !digits(below) ||
        below.find_first_not_of('0') == std::string_view::npos)
      throw DamagedForm("a number is none");
    return Rational(mpq_class(mpz_class(std::string(above)), mpz_class(std::string(below))));
  }

  void readTensor() {
    const std::int64_t kind = number(
        0, (((static_cast<std::int64_t>(Origin::kUnbound) * 2 + 1) * 4 + 3) * TensorFacts::kCodes +
            TensorFacts::kCodes - 1) *
                   2 +
               1);
    StageTensor t;
    t.logical = kind % 2 != 0;
    t.facts = TensorFacts::of(kind / 2 % TensorFacts::kCodes);
    const std::int64_t rest = kind / 2 / TensorFacts::kCodes;
    if (rest % 4 > static_cast<std::int64_t>(ElementKind::kComplex))
      throw DamagedForm("an unknown kind of element");
    t.info.element = static_cast<ElementKind>(rest % 4);
    t.info.absent = rest / 4 % 2 != 0;
    t.origin = static_cast<Origin>(rest / 8);
    if (!(t.facts == TensorFacts{}) && !(t.logical && t.origin == Origin::kVariable))
      throw DamagedForm("facts about a tensor that is no variable of the model's side");
    const bool ofModel = t.origin == Origin::kVariable,
               ofPlan = t.origin == Origin::kBoundary || t.origin == Origin::kUnbound;
    if (t.logical ? ofPlan : ofModel)
      throw DamagedForm("a tensor that is given in a way in which its side has none");
    t.info.shape =
        numbers(1);  // as in a plan, no tensor is without elements, and they can be counted
    std::int64_t elements = 1;
    for (const std::int64_t d : t.info.shape) {
      if (__builtin_mul_overflow(elements, d, &elements))
        throw DamagedForm("a tensor of more than 2^63 elements");
    }
    t.tensor = TensorId(stage_.tensors.size());
    if (!t.logical) t.program = ProgramId(0), t.rank = Rank(0);
    if (t.origin == Origin::kConstant) {
      ConstantValue value;
      value.fill = number(0, 1) != 0;
      readList([&] { value.elements.push_back(rational()); });
      if (static_cast<std::int64_t>(value.elements.size()) != (value.fill ? 1 : elements))
        throw DamagedForm("a constant has another number of elements than its shape");
      t.kind = TensorKind::kConstant;
      t.constant = std::make_shared<const ConstantValue>(std::move(value));
    }
    stage_.tensors.push_back(std::move(t));
  }

  Attributes readAttributes() {
    Attributes attributes;
    readList([&] {
      std::string key = text();
      AttributeValue value;
      switch (number(0, 3)) {
        case 0:
          value = number(0, 1) != 0;
          break;
        case 1:
          value = rational();
          break;
        case 2:
          value = text();
          break;
        default:
          value = numbers();
          break;
      }
      attributes.insert_or_assign(std::move(key), std::move(value));
    });
    return attributes;
  }

  std::int32_t tensor(std::int32_t least = 0) {
    return static_cast<std::int32_t>(
        number(least, static_cast<std::int64_t>(stage_.tensors.size()) - 1));
  }

  void readNode() {
    StageNode n;
    const std::int64_t kind = number(0, static_cast<std::int64_t>(Communication::kPart) * 2 + 1);
    n.logical = kind % 2 != 0;
    n.communication = static_cast<Communication>(kind / 2);
    n.node = NodeId(stage_.nodes.size());
    if (!n.logical) n.program = ProgramId(0), n.rank = Rank(0);
    const bool communicates = n.communication != Communication::kNone;
    if (!communicates) {
      const std::int64_t operation = number(0, static_cast<std::int64_t>(operations_.size()));
      if (operation == static_cast<std::int64_t>(operations_.size())) {
        const std::string name = text();
        const OperatorId op = ops::Registry::instance().find(name);
        if (!op) throw DamagedForm("an unknown operator");
        operations_.emplace_back(op, attributes_.share(attributes_.intern(readAttributes())));
      }
      std::tie(n.op, n.attributes) = operations_[operation];
    } else {
      n.attributes = attributes_.share(attributes_.intern({}));
    }
    const std::int32_t least = communicates ? 0 : -1;
    readList([&] { n.in.push_back(StageTensorId(tensor(least))); });
    readList([&] { n.out.push_back(StageTensorId(tensor(-1))); });
    for (const StageTensorId t : n.in) {
      if (t >= 0 && (!written_[t] || stage_.tensors[t].logical != n.logical))
        throw DamagedForm("an operator reads what is not there");
    }
    for (const StageTensorId t : n.out) {
      if (t < 0) continue;
      if (written_[t] || stage_.tensors[t].logical != n.logical)
        throw DamagedForm("an operator writes what is there");
      written_[t] = 1;
    }
    if (communicates) {
      n.reduction = static_cast<Reduction>(number(0, static_cast<std::int64_t>(Reduction::kMin)));
      n.dim = static_cast<std::int32_t>(number(-64, 64));
      n.odim = static_cast<std::int32_t>(number(-64, 64));
      n.member = static_cast<std::int32_t>(number(0, std::numeric_limits<std::int32_t>::max()));
      n.weight = numbers();
    }
    checkSignature(n);
    stage_.nodes.push_back(std::move(n));
  }

  // Everything that runs an operator goes by its tensors' shapes.
  void checkOperator(const StageNode& n, const ops::OperatorInfo& op) const {
    const Attributes& attributes = *n.attributes;
    op.validate(attributes, n.in.size(), n.out.size());
    std::vector<const ops::TensorInfo*> operands;
    for (const StageTensorId t : n.in)
      operands.push_back(t < 0 ? nullptr : &stage_.tensors[t].info);
    const auto results = op.infer({attributes, operands, n.out.size()});
    for (std::size_t i = 0; i < n.out.size(); ++i) {
      if (n.out[i] < 0) continue;
      const ops::TensorInfo& written = stage_.tensors[n.out[i]].info;
      if (i >= results.size() ||
          !fitsDeclared(results[i].shape, written.shape, op.scalarMayBeOne) ||
          results[i].element != written.element) {
        throw DamagedForm("a result of another shape or kind than its operator produces");
      }
    }
  }

  void checkSignature(const StageNode& n) const {
    if (n.communication == Communication::kNone) {
      try {
        checkOperator(n, ops::Registry::instance().at(n.op));
      } catch (const std::invalid_argument& error) {
        throw DamagedForm(error.what());
      } catch (const ShapeError& error) {
        throw DamagedForm(error.what());
      } catch (const Unsupported&) {  // as in a plan: such a stage is undecided
      }
      return;
    }
    checkCommunication(n);
  }

  // Of the members' tensors as the checks of the plan require them of a plan (plan/checks.h).
  void checkCommunication(const StageNode& n) const {
    auto members = static_cast<std::int64_t>(n.in.size());
    // A group of one may have no weights; otherwise there is one for each member.
    if (n.in.empty() || n.out.size() != 1 || (!n.weight.empty() && n.weight.size() != n.in.size()))
      throw DamagedForm("a communication of no members");
    switch (n.communication) {
      case Communication::kAllReduce:
      case Communication::kAllGather:
      case Communication::kReduceScatter:
      case Communication::kAllToAll:
        break;
      case Communication::kBroadcast:
      case Communication::kReceive:
      case Communication::kPart:
        if (members != 1) throw DamagedForm("a copy or a part of several operands");
        break;
      default:
        throw DamagedForm("a communication that no stage has");
    }
    // A part is one of as many as fit.
    if (n.communication == Communication::kPart && n.out[0] >= 0) {
      const Shape &whole = stage_.tensors[n.in[0]].info.shape,
                  &part = stage_.tensors[n.out[0]].info.shape;
      const std::int64_t dim = n.dim < 0 ? n.dim + static_cast<std::int64_t>(part.size()) : n.dim;
      if (dim >= 0 && dim < static_cast<std::int64_t>(part.size()) && part.size() == whole.size()) {
        members = std::max<std::int64_t>(1, whole[dim] / std::max<std::int64_t>(1, part[dim]));
      }
    }
    const bool cuts = ops::collectiveOf(n.communication).movesPieces();
    if (cuts && n.member >= members)
      throw DamagedForm("a communication without the member whose result it is");
    std::int64_t total = 0;
    for (const std::int64_t m : n.weight) {
      if (m < 1 || m > std::numeric_limits<std::int32_t>::max() || (cuts && m != 1))
        throw DamagedForm("a communication's member stands for an impossible number of others");
      total += m;
    }
    if (total > std::numeric_limits<std::int32_t>::max())
      throw DamagedForm("a communication of too many members");
    if (n.out[0] < 0) return;
    const ops::TensorInfo &first = stage_.tensors[n.in[0]].info,
                          &out = stage_.tensors[n.out[0]].info;
    for (const StageTensorId t : n.in) {
      const ops::TensorInfo& in = stage_.tensors[t].info;
      if (in.shape != first.shape || in.element != out.element)
        throw DamagedForm("a communication between tensors of different shapes or kinds");
    }
    CommunicationSpec spec;
    spec.kind = n.communication;
    spec.dim = n.dim;
    spec.odim = n.odim;
    try {
      if (ops::communicationShape(spec, first.shape, members) != out.shape)
        throw DamagedForm("a communication's result has another shape than it produces");
    } catch (const ShapeError& error) {
      throw DamagedForm(error.what());
    }
  }

  Equation readEquation() {
    Equation e;
    e.entry = EntryId(0);
    e.logical = StageTensorId(tensor());
    const Shape& shape = stage_.tensors[e.logical].info.shape;
    readList([&] {
      const std::int64_t low = number(0);
      e.box.emplace_back(low, number(low));
    });
    if (!stage_.tensors[e.logical].logical || e.box.size() != shape.size())
      throw DamagedForm("a lineage box of another rank than its tensor");
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (e.box[d].second > shape[d]) throw DamagedForm("a lineage box outside its tensor");
    }
    readList([&] {
      const std::int32_t part = tensor();
      const StageTensor& local = stage_.tensors[part];
      bool fits = !local.logical && local.info.shape.size() == shape.size() &&
                  local.info.element == stage_.tensors[e.logical].info.element;
      for (std::size_t d = 0; fits && d < shape.size(); ++d)
        fits = e.box[d].second - e.box[d].first == local.info.shape[d];
      if (!fits) throw DamagedForm("a lineage part that does not fit its box");
      e.parts.emplace_back(part, number());
    });
    if (e.parts.empty()) throw DamagedForm("lineage without parts");
    readList([&] {
      Equation::Step step;
      step.collapsed = static_cast<std::int32_t>(
          number(0, static_cast<std::int64_t>(stage_.collapsedAxes.size()) - 1));
      step.coordinate =
          static_cast<std::int32_t>(number(0, stage_.collapsedAxes[step.collapsed].size - 1));
      step.offset = numbers();
      if (step.offset.size() != shape.size())
        throw DamagedForm("a lineage step of another rank than its tensor");
      e.step.push_back(std::move(step));
    });
    return e;
  }

  std::string_view bytes_;
  std::size_t next_ = 0;
  AttributeTable attributes_;  // so that equal sets are one, as where the form was written
  Stage stage_;
  std::vector<std::pair<OperatorId, std::shared_ptr<const Attributes>>> operations_;
  std::vector<char> written_;  // stage tensors that have a value before the node that is read next
};

}  // namespace

Stage readCanonicalForm(std::string_view form) { return FormReader(form).run(); }

}  // namespace shardproof
