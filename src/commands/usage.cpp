// SPDX-License-Identifier: Apache-2.0
#include "commands/usage.h"

#include <algorithm>

#include "util/printable.h"
#include "util/similar.h"

namespace shardproof {

namespace {

std::vector<std::string> commandsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::vector<std::string> optionsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

}  // namespace

std::string unknownWord(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  std::string path;
  bool values = false;  // behind an option or a value: a word may be its value
  for (const std::string& word : words) {
    if (word == "--") break;
    if (word.starts_with("--")) {
      const std::string name = word.substr(0, word.find('='));
      if (at->get_option_no_throw(name) == nullptr)
        return "unknown option " + printable(name) + (path.empty() ? "" : " of" + path) +
               didYouMean(name, optionsOf(*at));
      values = word.size() == name.size();
      continue;
    }
    if (word.starts_with("-") && word.size() > 1) {
      values = true;
      continue;
    }
    const std::vector<std::string> commands = commandsOf(*at);
    if (values || commands.empty()) continue;
    if (std::find(commands.begin(), commands.end(), word) == commands.end())
      return "unknown command " + printable(word) + (path.empty() ? "" : " of" + path) +
             didYouMean(word, commands);
    at = at->get_subcommand(word);
    path += " " + word;
  }
  return "";
}

}  // namespace shardproof
