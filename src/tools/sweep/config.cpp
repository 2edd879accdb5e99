// SPDX-License-Identifier: Apache-2.0
#include "sweep/config.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string_view>

#include "reader/file_header.h"
#include "reader/json_stream.h"
#include "reader/plan_files.h"
#include "reader/value.h"
#include "shardproof/error.h"

namespace shardproof::sweep {
namespace {

namespace fs = std::filesystem;
using reader::Value;
using reader::ValueKind;

constexpr std::size_t kMostConfigurations = 100'000;  // a grid of more is a slip
constexpr std::array<std::string_view, 4> kEntryKeys = {"name", "expect", "mutate", "skip_invalid"};

// One of the values that an option of a grid takes, and where it stands.
struct Choice {
  std::string text;  // empty: a flag that is not set
  std::string pointer;
};

struct Axis {
  std::string option;
  std::vector<Choice> choices;
};

struct Common {
  bool skipInvalid = false;
  Verdict expect = Verdict::kEquivalent;
};

Verdict readExpect(const Value& value) {
  for (const Verdict v : {Verdict::kEquivalent, Verdict::kNotEquivalent})
    if (value.kind() == ValueKind::kString && value.string() == toString(v)) return v;
  value.expected("\"equivalent\" or \"not-equivalent\"");
}

Bug readBug(const Value& value) {
  static constexpr std::array<std::string_view, 3> kKeys = {"bug", "at", "seed"};
  value.expectFields(kKeys);
  Bug bug;
  bug.name = value.require("bug").name();
  try {
    mutate::findBug(bug.name);
  } catch (const mutate::MutationError& error) {
    value.require("bug").fail(error.what());
  }
  if (const auto at = value.find("at")) bug.choice.at = at->name();
  if (const auto seed = value.find("seed")) {
    if (!bug.choice.at.empty()) seed->fail("\"seed\" beside \"at\", expected one of them");
    bug.choice.seed = static_cast<std::uint64_t>(seed->integer(0));
  }
  return bug;
}

// A bug, or several to choose from; without the field the plan as it is.
std::vector<std::optional<Bug>> readBugs(const Value& entry) {
  const auto value = entry.find("mutate");
  if (!value) return {std::nullopt};
  std::vector<std::optional<Bug>> bugs;
  if (value->kind() == ValueKind::kArray) {
    if (value->size() == 0) value->expected("at least one bug");
    for (const Value bug : *value) bugs.emplace_back(readBug(bug));
  } else {
    bugs.emplace_back(readBug(*value));
  }
  return bugs;
}

std::string labelOf(const Bug& bug) {
  std::string label = "bug=" + bug.name;
  if (!bug.choice.at.empty()) label += "@" + bug.choice.at;
  if (bug.choice.seed) label += "@seed" + std::to_string(*bug.choice.seed);
  return label;
}

Choice readChoice(const Value& value, bool flag) {
  const std::string pointer = value.pointer();
  if (flag) return {value.boolean() ? "true" : "", pointer};
  if (value.kind() == ValueKind::kString) return {std::string(value.name()), pointer};
  return {value.numberText("a number or a string, or a list of them"), pointer};
}

// `fields`: what may stand beside the options.
Axis readAxis(const Value& member, const GeneratorOptions& known,
              std::span<const std::string_view> fields) {
  Axis axis{.option = known.nameOf(std::string(member.key())), .choices = {}};
  const std::vector<std::string> names = known.names();
  if (std::find(names.begin(), names.end(), axis.option) == names.end()) {
    std::vector<std::string_view> expected(fields.begin(), fields.end());
    expected.insert(expected.end(), names.begin(), names.end());
    member.fail("unknown field \"" + axis.option + "\", expected only " +
                reader::listNames(expected));
  }
  const bool flag = known.isFlag(axis.option);
  if (member.kind() != ValueKind::kArray) {
    axis.choices.push_back(readChoice(member, flag));
    return axis;
  }
  if (member.size() == 0) member.expected("at least one value");
  for (const Value value : member) {
    Choice choice = readChoice(value, flag);
    for (const Choice& other : axis.choices)
      if (other.text == choice.text) value.fail("found " + value.describe() + " a second time");
    axis.choices.push_back(std::move(choice));
  }
  return axis;
}

class ConfigClient : public reader::StreamClient {
 public:
  ConfigClient(const std::string& file, const GeneratorOptions& known)
      : directory_(fs::path(file).parent_path()), known_(known) {}
  std::vector<Configuration> take() { return std::move(configurations_); }

  int open(int, std::string_view, bool, const reader::Place&) override { return kWhole; }
  void close(int, const reader::Place&) override {}
  void value(int, std::string_view, const Value& config) override {
    static constexpr std::array<std::string_view, 7> kKeys = {
        "format", "version", "defaults", "expect", "skip_invalid", "plans", "configurations"};
    config.expectFields(kKeys);
    reader::FileHeader header("shardproof-sweep");
    for (const std::string_view key : {"format", "version"}) header.read(key, config.require(key));
    if (const auto expect = config.find("expect")) common_.expect = readExpect(*expect);
    if (const auto skip = config.find("skip_invalid")) common_.skipInvalid = skip->boolean();
    std::vector<Axis> defaults;
    if (const auto value = config.find("defaults"))
      for (const Value member : value->expectObject())
        defaults.push_back(readAxis(member, known_, {}));
    if (const auto plans = config.find("plans"))
      for (const Value entry : plans->expectArray()) readPlans(entry);
    if (const auto grids = config.find("configurations"))
      for (const Value entry : grids->expectArray()) readGrid(entry, defaults);
    if (configurations_.empty())
      config.fail("there is nothing to run, expected \"plans\" or \"configurations\"");
  }

 private:
  void add(Configuration configuration, const Value& entry) {
    if (configurations_.size() >= kMostConfigurations) failTooMany(entry);
    if (!names_.insert(configuration.name).second)
      entry.fail("there is another configuration of the name \"" + configuration.name +
                 "\", expected different ones (the field \"name\")");
    configurations_.push_back(std::move(configuration));
  }

  [[noreturn]] static void failTooMany(const Value& entry) {
    entry.fail("more than " + std::to_string(kMostConfigurations) + " configurations");
  }

  void readPlans(const Value& entry) {
    static constexpr std::array<std::string_view, 6> kKeys = {"plan",   "model",  "name",
                                                              "expect", "mutate", "skip_invalid"};
    const bool alone = entry.kind() == ValueKind::kString;
    if (!alone && entry.kind() != ValueKind::kObject)
      entry.expected("the path of a plan, or an object");
    if (!alone) entry.expectFields(kKeys);
    const std::string written((alone ? entry : entry.require("plan")).name());
    const std::vector<std::string> files = plansAt(written);
    Configuration base;
    base.expect = common_.expect;
    base.skipInvalid = common_.skipInvalid;
    std::string name;
    std::vector<std::optional<Bug>> bugs = {std::nullopt};
    if (!alone) {
      if (const auto model = entry.find("model"))
        base.model = (directory_ / model->name()).string();
      if (const auto given = entry.find("name")) name = given->name();
      if (const auto expect = entry.find("expect")) base.expect = readExpect(*expect);
      if (const auto skip = entry.find("skip_invalid")) base.skipInvalid = skip->boolean();
      bugs = readBugs(entry);
    }
    for (const std::string& file : files) {
      for (const std::optional<Bug>& bug : bugs) {
        Configuration c = base;
        c.plan = file;
        c.bug = bug;
        const std::string relative =
            fs::path(file)
                .lexically_relative(directory_.empty() ? fs::path(".") : directory_)
                .string();
        const std::string shown = relative.empty() ? file : relative;
        c.name = name.empty() ? shown : files.size() > 1 ? name + " " + shown : name;
        if (bug && (name.empty() || bugs.size() > 1)) c.name += " " + labelOf(*bug);
        std::error_code ignored;
        if (!fs::is_regular_file(file, ignored)) c.invalid = file + ": " + whyNoPlan(file, written);
        add(std::move(c), entry);
      }
    }
  }

  // The files that a path, a directory or a pattern stands for; at least one, so that what is not
  // there gets a row.
  std::vector<std::string> plansAt(const std::string& written) const {
    const std::string path = (directory_ / written).string();
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
      std::vector<std::string> found = reader::plansIn(path);
      return found.empty() ? std::vector{path} : found;
    }
    if (fs::exists(path, ignored) || written.find_first_of("*?[") == std::string::npos)
      return {path};
    glob_t matches{};
    const std::unique_ptr<glob_t, void (*)(glob_t*)> release(&matches, ::globfree);
    if (::glob(path.c_str(), 0, nullptr, &matches) != 0) return {path};
    return {matches.gl_pathv, matches.gl_pathv + matches.gl_pathc};
  }

  static std::string whyNoPlan(const std::string& file, const std::string& written) {
    std::error_code ignored;
    if (fs::is_directory(file, ignored))
      return "found a directory that holds no *.plan.json or *.plan.json.gz that can be listed, "
             "expected plans";
    if (written.find_first_of("*?[") != std::string::npos) return "no file matches";
    return "there is no such file";
  }

  void readGrid(const Value& entry, const std::vector<Axis>& defaults) {
    entry.expectObject();
    std::string name;
    Verdict expect = common_.expect;
    bool skipInvalid = common_.skipInvalid;
    std::vector<Axis> own;
    for (const Value member : entry) {
      if (member.key() == "name") name = member.name();
      else if (member.key() == "expect") expect = readExpect(member);
      else if (member.key() == "skip_invalid") skipInvalid = member.boolean();
      else if (member.key() != "mutate") own.push_back(readAxis(member, known_, kEntryKeys));
    }
    std::vector<Axis> axes;
    for (const Axis& axis : defaults)
      if (std::none_of(own.begin(), own.end(),
                       [&](const Axis& a) { return a.option == axis.option; }))
        axes.push_back(axis);
    const std::size_t inherited = axes.size();
    axes.insert(axes.end(), own.begin(), own.end());
    const std::vector<std::optional<Bug>> bugs = readBugs(entry);

    // What a configuration is called by: what its entry states, and whatever varies.
    const auto isNamed = [&](std::size_t i) {
      const Axis& axis = axes[i];
      if (axis.choices.size() > 1) return true;
      return name.empty() && (i >= inherited || axis.option == "arch" || axis.option == "size");
    };
    std::size_t combinations = bugs.size();
    for (const Axis& axis : axes)
      if ((combinations *= axis.choices.size()) > kMostConfigurations) failTooMany(entry);
    std::vector<std::size_t> at(axes.size(), 0);
    std::size_t valid = 0, all = 0;
    std::string reason;
    do {
      Configuration base;
      base.expect = expect;
      base.skipInvalid = skipInvalid;
      std::string label = name;
      const auto append = [&](const std::string& part) {
        label += (label.empty() ? "" : " ") + part;
      };
      std::map<std::string, std::string> places;
      for (const char* first : {"arch", "size"})
        for (std::size_t i = 0; i < axes.size(); ++i)
          if (axes[i].option == first && isNamed(i)) append(axes[i].choices[at[i]].text);
      for (std::size_t i = 0; i < axes.size(); ++i) {
        const Choice& choice = axes[i].choices[at[i]];
        if (choice.text.empty()) continue;  // a flag that is not set
        const std::string& option = axes[i].option;
        base.settings.emplace_back(option, choice.text);
        places[option] = choice.pointer;
        if (option != "arch" && option != "size" && isNamed(i))
          append(known_.isFlag(option) ? option : option + "=" + choice.text);
      }
      std::sort(base.settings.begin(), base.settings.end());
      base.options = parse(base.settings, places, entry);
      try {
        generate::complete(*base.options);
        ++valid;
      } catch (const generate::OptionError& error) {
        base.invalid = reason = error.what();
      }
      for (const std::optional<Bug>& bug : bugs) {
        Configuration c = base;
        c.bug = bug;
        c.name = label;
        if (bug && (name.empty() || bugs.size() > 1)) c.name += " " + labelOf(*bug);
        add(std::move(c), entry);
      }
      ++all;
    } while (next(at, axes));
    if (valid == 0 && skipInvalid)
      entry.fail("none of the " + std::to_string(all) +
                 " combinations can be generated, the last because: " + reason);
  }

  // The last option varies fastest. False when all combinations were there.
  static bool next(std::vector<std::size_t>& at, const std::vector<Axis>& axes) {
    for (std::size_t i = axes.size(); i-- > 0;) {
      if (++at[i] < axes[i].choices.size()) return true;
      at[i] = 0;
    }
    return false;
  }

  generate::Options parse(const Settings& settings,
                          const std::map<std::string, std::string>& places,
                          const Value& entry) const {
    try {
      return known_.parse(settings);
    } catch (const generate::OptionError& error) {
      // The wrong one is that without which the others are right.
      for (std::size_t i = 0; i < settings.size(); ++i) {
        Settings others = settings;
        others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
        try {
          known_.parse(others);
        } catch (const generate::OptionError&) {
          continue;
        }
        entry.failAt(places.at(settings[i].first), error.what());
      }
      entry.fail(error.what());
    }
  }

  fs::path directory_;
  const GeneratorOptions& known_;
  Common common_;
  std::vector<Configuration> configurations_;
  std::set<std::string> names_;
};

}  // namespace

std::vector<Configuration> readConfig(const std::string& file, const GeneratorOptions& known) {
  ConfigClient client(file, known);
  reader::readJson(file, client);
  return client.take();
}

}  // namespace shardproof::sweep
