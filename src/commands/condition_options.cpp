// SPDX-License-Identifier: Apache-2.0
#include "commands/condition_options.h"

#include <algorithm>

#include "chain/conditions.h"
#include "commands/streams.h"
#include "util/printable.h"

namespace shardproof {

void addConditionOptions(CLI::App* command, VerifyOptions& options) {
  command
      ->add_option("--accept", options.accept,
                   "Accept the assumption of this name: it no longer makes the verdict "
                   "conditional; may be given several times")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command
      ->add_option("--allow-uncompared", options.allowUncompared,
                   "Accept that what matches this pattern (with *, ? and [...]) is not compared; "
                   "may be given several times")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
}

void NamedConditions::add(const Report& report) {
  anyPlan = true;
  for (const Assumption& a : report.assumptions) assumptions.insert(a.name);
  for (const NotCompared& item : report.notCompared) notCompared.insert(item.what);
}

void noteUnusedOptions(const VerifyOptions& options, const NamedConditions& named) {
  if (!named.anyPlan) return;
  for (const std::string& name : options.accept)
    if (!named.assumptions.contains(name))
      writeDiagnostic("note: --accept " + printable(name) + ": no plan has this assumption");
  for (const std::string& pattern : options.allowUncompared)
    if (std::none_of(named.notCompared.begin(), named.notCompared.end(),
                     [&](const std::string& what) { return allows(pattern, what); }))
      writeDiagnostic("note: --allow-uncompared " + printable(pattern) +
                      ": no plan leaves out anything that matches");
}

}  // namespace shardproof
