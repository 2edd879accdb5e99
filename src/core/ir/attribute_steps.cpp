// SPDX-License-Identifier: Apache-2.0
#include "ir/attribute_steps.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "ir/clone.h"
#include "shardproof/error.h"

namespace shardproof::ir {

namespace {

std::int64_t moved(std::int64_t from, std::int64_t by, std::int64_t coordinate) {
  std::int64_t to = 0;
  if (__builtin_mul_overflow(by, coordinate, &to) || __builtin_add_overflow(from, to, &to))
    throw std::invalid_argument("leads beyond 64 bits");
  return to;
}

bool isZero(const AttributeValue& value) {
  if (const auto* number = std::get_if<Rational>(&value)) return number->isZero();
  const auto* list = std::get_if<std::vector<std::int64_t>>(&value);
  return list != nullptr && std::all_of(list->begin(), list->end(), [](auto i) { return i == 0; });
}

// The axes that attributes of the program move with, and those of its stretches, ascending.
std::vector<std::int32_t> movingAxes(const Program& program) {
  std::vector<std::int32_t> axes;
  for (const AttributeSteps& steps : program.steps)
    for (const auto& [axis, added] : steps.step) axes.push_back(axis);
  for (const Stretch& s : program.within) axes.push_back(s.axis);
  std::sort(axes.begin(), axes.end());
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  return axes;
}

Program withoutSteps(const Program& program) {
  Program made = program;
  made.steps.clear();
  return made;
}

// The program at these coordinates of the axes that its attributes move with. `bare`: the same
// without steps, which are as many as there are coordinates, and are not to be copied for each.
Program fixedAt(const Plan& plan, const Program& from, const Program& bare, const Coordinates& at) {
  Program made = bare;
  made.at.insert(made.at.end(), at.begin(), at.end());
  std::sort(made.at.begin(), made.at.end());
  std::erase_if(made.within, [&](const Stretch& s) {
    return std::any_of(at.begin(), at.end(), [&](const auto& c) { return c.first == s.axis; });
  });
  for (Node& node : made.graph.nodes) {
    node.attributes = attributesAt(plan, from, node, [&](std::int32_t axis) {
      return std::find_if(at.begin(), at.end(), [&](const auto& c) { return c.first == axis; })
          ->second;
    });
    node.steps = -1;
  }
  return made;
}

// All choices of coordinates of these axes.
std::vector<Coordinates> choicesOf(const Plan& plan, const Stretches& within,
                                   const std::vector<std::int32_t>& axes) {
  std::vector<Coordinates> choices{{}};
  for (const std::int32_t axis : axes) {
    const Range range = rangeOf(plan, within, axis);
    std::vector<Coordinates> wider;
    for (const Coordinates& at : choices) {
      for (std::int32_t c = range.low; c < range.high; ++c) {
        wider.push_back(at);
        wider.back().emplace_back(axis, c);
      }
    }
    choices = std::move(wider);
  }
  return choices;
}

void append(Coordinates& to, const Coordinates& more) {
  to.insert(to.end(), more.begin(), more.end());
  std::sort(to.begin(), to.end());
}

// What the shard says, by shards that name single coordinates of all stretches.
std::vector<Shard> withoutStretches(const Plan& plan, const Shard& shard) {
  const auto isSummed = [&](std::int32_t axis) {
    return std::binary_search(shard.sum.begin(), shard.sum.end(), axis);
  };
  std::vector<std::int32_t> summed, single;
  for (const Part& part : shard.parts)
    for (const Stretch& s : part.within) (isSummed(s.axis) ? summed : single).push_back(s.axis);
  if (summed.empty() && single.empty()) return {shard};
  for (auto* axes : {&summed, &single}) {
    std::sort(axes->begin(), axes->end());
    axes->erase(std::unique(axes->begin(), axes->end()), axes->end());
  }
  Shard all = shard;
  std::erase_if(all.sum, [&](std::int32_t axis) {
    return std::binary_search(summed.begin(), summed.end(), axis);
  });
  all.parts.clear();
  for (const Part& part : shard.parts) {
    for (const Coordinates& at : choicesOf(plan, part.within, summed)) {
      all.parts.push_back(part);
      append(all.parts.back().at, at);
    }
  }
  std::vector<Shard> made;
  for (const Coordinates& at : choicesOf(plan, shard.parts.front().within, single)) {
    Shard own = all;
    for (Part& part : own.parts) {
      part.within.clear();
      append(part.at, at);
    }
    for (const auto& [axis, c] : at) {
      for (const auto& [moving, offsets] : own.step)
        for (std::size_t d = 0; d < own.box.size() && moving == axis; ++d) {
          own.box[d].first += c * offsets[d];
          own.box[d].second += c * offsets[d];
        }
      std::erase_if(own.step, [a = axis](const auto& s) { return s.first == a; });
    }
    made.push_back(std::move(own));
  }
  return made;
}

// The same of all lineage. Parts of local tensors have no stretches; their shards get new places.
void nameSingleCoordinates(Plan& plan) {
  for (const EntryId e : firstIds<EntryId>(plan.lineage.size())) {
    std::vector<Shard> made;
    std::vector<std::uint32_t> placeOf;
    for (const Shard& shard : plan.lineage[e].shards) {
      placeOf.push_back(static_cast<std::uint32_t>(made.size()));
      for (Shard& own : withoutStretches(plan, shard)) made.push_back(std::move(own));
    }
    for (PlacedPart& placed : plan.placed)
      if (placed.entry == e) placed.shard = placeOf.at(placed.shard);
    plan.lineage[e].shards = std::move(made);
  }
}

}  // namespace

void addSteps(Attributes& attributes, const Attributes& step, std::int64_t coordinate) {
  for (const auto& [key, by] : step) {
    const auto to = attributes.find(key);
    if (to == attributes.end())
      throw std::invalid_argument("found a step of \"" + key +
                                  "\", expected one of an attribute that \"attrs\" has");
    auto* number = std::get_if<Rational>(&to->second);
    auto* list = std::get_if<std::vector<std::int64_t>>(&to->second);
    const auto* byNumber = std::get_if<Rational>(&by);
    const auto* byList = std::get_if<std::vector<std::int64_t>>(&by);
    if (number != nullptr && byNumber != nullptr) {
      *number = *number + *byNumber * Rational(coordinate);
    } else if (list != nullptr && byList != nullptr && list->size() == byList->size()) {
      for (std::size_t i = 0; i < list->size(); ++i)
        (*list)[i] = moved((*list)[i], (*byList)[i], coordinate);
    } else {
      throw std::invalid_argument("found a step of \"" + key +
                                  "\" that is not as the attribute, expected a number for a "
                                  "number, and for a list one of the same length");
    }
  }
}

AttributeSteps takeSteps(const Plan& plan, const Program& program, Node& node,
                         std::vector<std::pair<std::int32_t, Attributes>> step,
                         AttributeTable& attributes) {
  Attributes first = attributes.at(node.attributes);
  AttributeSteps made;
  for (auto& [axis, by] : step) {
    const auto fixed = std::find_if(program.at.begin(), program.at.end(),
                                    [&, a = axis](const auto& c) { return c.first == a; });
    // What fits is asked in any case.
    addSteps(first, by,
             fixed == program.at.end() ? rangeOf(plan, program.within, axis).low : fixed->second);
    std::erase_if(by, [](const auto& added) { return isZero(added.second); });
    if (fixed == program.at.end() && !by.empty()) made.step.emplace_back(axis, std::move(by));
  }
  node.attributes = attributes.intern(first);
  std::sort(made.step.begin(), made.step.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Attributes> sets{std::move(first)};
  for (const auto& [axis, by] : made.step) {
    const auto size = static_cast<std::size_t>(rangeOf(plan, program.within, axis).size());
    if (sets.size() * size > kMostAttributeSets)
      throw std::invalid_argument("has more than " + std::to_string(kMostAttributeSets) +
                                  " choices of coordinates, which is the limit");
    std::vector<Attributes> wider;
    wider.reserve(sets.size() * size);
    for (const Attributes& set : sets) {
      for (std::size_t c = 0; c < size; ++c) {
        wider.push_back(set);
        addSteps(wider.back(), by, static_cast<std::int64_t>(c));
      }
    }
    sets = std::move(wider);
  }
  for (Attributes& set : sets) made.sets.push_back(attributes.intern(std::move(set)));
  return made;
}

std::unique_ptr<Problem> withFixedAttributes(const Problem& problem, std::size_t most) {
  const Plan& plan = problem.plan;
  const bool stretches = plan.hasStretches();
  if (!stretches && !plan.attributesMove()) return nullptr;
  std::size_t nodes = 0, fixed = 0;
  for (const Program& program : plan.programs) {
    std::size_t choices = 1;  // ranks of the mesh at most
    for (const std::int32_t axis : movingAxes(program))
      choices *= static_cast<std::size_t>(rangeOf(plan, program.within, axis).size());
    nodes += choices * program.graph.nodes.size();
    fixed += choices;
  }
  if (fixed > kMostFixedPrograms)
    throw Unsupported("a program for each coordinate that attributes move with makes " +
                      std::to_string(fixed) + " programs, more than " +
                      std::to_string(kMostFixedPrograms));
  if (nodes > most)
    throw Unsupported(
        "with a program for each coordinate that attributes move with, the plan has " +
        std::to_string(nodes) + " nodes, more than " + std::to_string(most));
  std::vector<Program> programs;
  for (const ProgramId p : firstIds<ProgramId>(plan.programs.size())) {
    const Program& program = plan.programs[p];
    const Program bare = withoutSteps(program);
    for (const Coordinates& at : choicesOf(plan, program.within, movingAxes(program))) {
      programs.push_back(fixedAt(plan, program, bare, at));
      if (!program.inFile.valid()) programs.back().inFile = p;
    }
  }
  std::unique_ptr<Problem> made = cloneProblem(problem);
  made->plan.programs = std::move(programs);
  if (stretches) nameSingleCoordinates(made->plan);
  return made;
}

std::vector<Program> splitAlong(const Plan& plan, const Program& program,
                                std::vector<std::int32_t> axes) {
  const auto isFixed = [&](std::int32_t axis) {
    return std::any_of(program.at.begin(), program.at.end(),
                       [&](const auto& c) { return c.first == axis; });
  };
  std::erase_if(axes, isFixed);
  if (axes.empty()) return {program};
  const std::vector<std::int32_t> moving = movingAxes(program);
  axes.insert(axes.end(), moving.begin(), moving.end());
  std::sort(axes.begin(), axes.end());
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  std::vector<Program> made;
  const Program bare = withoutSteps(program);
  for (const Coordinates& at : choicesOf(plan, program.within, axes))
    made.push_back(fixedAt(plan, program, bare, at));
  return made;
}

}  // namespace shardproof::ir
