// SPDX-License-Identifier: Apache-2.0
#include "commands/completion_command.h"

#include <memory>
#include <vector>

#include "commands/streams.h"
#include "commands/words.h"

namespace shardproof {

namespace {

struct Word {
  std::string text, says;
  std::vector<std::string> choices;
  bool file = false, value = false;
};

struct Command {
  std::vector<std::string> path;  // "cache", "stats"
  std::string says;
  std::vector<Word> options;
  std::vector<Word> commands;
  bool files = false;  // takes files by their places
};

// The values that a check allows: "{auto,z3}" in its description.
std::vector<std::string> choicesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t open = type.find('{'), close = type.find('}');
  std::vector<std::string> choices;
  if (open == std::string::npos || close == std::string::npos || close < open) return choices;
  std::string word;
  for (const char c : type.substr(open + 1, close - open)) {
    if (c != ',' && c != '}') {
      word += c;
      continue;
    }
    if (!word.empty()) choices.push_back(word);
    word.clear();
  }
  return choices;
}

void collect(const CLI::App& app, std::vector<std::string> path, std::vector<Command>& all) {
  Command command;
  command.path = path;
  command.says = app.get_description();
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      command.files = true;
      continue;
    }
    Word word;
    word.says = option->get_description();
    word.choices = choicesOf(*option);
    word.value = option->get_expected_max() > 0;
    const std::string type = option->get_type_name();
    word.file = type.find("FILE") != std::string::npos || type.find("DIR") != std::string::npos ||
                type.find("PREFIX") != std::string::npos;
    for (const std::string& name : option->get_lnames()) {
      word.text = "--" + name;
      command.options.push_back(word);
    }
    for (const std::string& name : option->get_snames()) {
      word.text = "-" + name;
      command.options.push_back(word);
    }
  }
  const auto subcommands = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* sub : subcommands)
    command.commands.push_back({sub->get_name(), sub->get_description(), {}, false, false});
  all.push_back(std::move(command));
  for (const CLI::App* sub : subcommands) {
    auto below = path;
    below.push_back(sub->get_name());
    collect(*sub, std::move(below), all);
  }
}

// Within single quotes.
std::string shellQuoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string bashScript(const std::vector<Command>& commands) {
  std::string text =
      "# bash completion of shardproof\n"
      "_shardproof() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path='' word i\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    word=${COMP_WORDS[i]}\n"
      "    case \"$path/$word\" in\n";
  for (const Command& command : commands)
    if (!command.path.empty())
      text += "      '" + std::string(command.path.size() > 1 ? "/" : "") +
              joined(command.path, "/").insert(0, command.path.size() > 1 ? "" : "/") +
              "') path=\"$path/$word\" ;;\n";
  text +=
      "    esac\n"
      "  done\n"
      "  local options='' commands='' files=0\n"
      "  case \"$path\" in\n";
  for (const Command& command : commands) {
    std::vector<std::string> options, below;
    for (const Word& word : command.options) options.push_back(word.text);
    for (const Word& word : command.commands) below.push_back(word.text);
    std::string path;
    for (const std::string& word : command.path) path += "/" + word;
    text += "    " + shellQuoted(path) + ")\n";
    text += "      options=" + shellQuoted(joined(options, " ")) +
            " commands=" + shellQuoted(joined(below, " ")) +
            " files=" + (command.files ? "1" : "0") + "\n";
    text += "      case \"$prev\" in\n";
    for (const Word& word : command.options) {
      if (!word.choices.empty())
        text += "        " + word.text + ") COMPREPLY=($(compgen -W " +
                shellQuoted(joined(word.choices, " ")) + " -- \"$cur\")); return ;;\n";
      else if (word.value)
        text += "        " + word.text + ") COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n";
    }
    text += "      esac ;;\n";
  }
  return text +
         "  esac\n"
         "  if [[ $cur == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -W \"$commands\" -- \"$cur\"))\n"
         "    ((files)) && COMPREPLY+=($(compgen -f -- \"$cur\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _shardproof shardproof\n";
}

std::string zshEscaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zshScript(const std::vector<Command>& commands) {
  std::string text = "#compdef shardproof\n# zsh completion of shardproof\n\n";
  for (const Command& command : commands) {
    const std::string name =
        "_shardproof" + std::string(command.path.empty() ? "" : "_") + joined(command.path, "_");
    std::string function;
    for (const char c : name) function += c == '-' ? '_' : c;
    text += function + "() {\n";
    if (!command.commands.empty()) {
      text += "  local -a commands=(\n";
      for (const Word& word : command.commands)
        text += "    " + shellQuoted(zshEscaped(word.text) + ":" + word.says) + "\n";
      text += "  )\n  local curcontext=$curcontext state line\n";
    }
    text += "  _arguments -s -S \\\n";
    for (const Word& word : command.options) {
      std::string spec = word.text + (word.text.starts_with("--") && word.value ? "=" : "") + "[" +
                         zshEscaped(word.says) + "]";
      if (!word.choices.empty()) spec += ":value:(" + joined(word.choices, " ") + ")";
      else if (word.value) spec += word.file ? ":file:_files" : ":value:";
      text += "    " + shellQuoted(spec) + " \\\n";
    }
    if (command.commands.empty()) {
      text += command.files ? "    '*:file:_files'\n" : "    && return\n";
    } else {
      text += "    '1:command:->command' '*::argument:->argument'\n";
      text += "  case $state in\n    command) _describe command commands ;;\n    argument)\n";
      text += "      case $line[1] in\n";
      for (const Word& word : command.commands) {
        std::string below;
        for (const char c : function + "_" + word.text) below += c == '-' ? '_' : c;
        text += "        " + word.text + ") " + below + " ;;\n";
      }
      text += "      esac ;;\n  esac\n";
    }
    text += "}\n\n";
  }
  return text +
         "if [[ $funcstack[1] == _shardproof ]]; then\n  _shardproof \"$@\"\nelse\n"
         "  compdef _shardproof shardproof\nfi\n";
}

std::string fishQuoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string fishScript(const std::vector<Command>& commands) {
  std::string text = "# fish completion of shardproof\n";
  for (const Command& command : commands) {
    std::string when;
    if (command.path.empty()) {
      when = "__fish_use_subcommand";
    } else {
      for (const std::string& word : command.path)
        when += (when.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + word);
    }
    const std::string begin = "complete -c shardproof -n " + fishQuoted(when);
    for (const Word& word : command.commands)
      text += begin + " -f -a " + word.text + " -d " + fishQuoted(word.says) + "\n";
    for (const Word& word : command.options) {
      text += begin + (word.text.starts_with("--") ? " -l " + word.text.substr(2)
                                                   : " -s " + word.text.substr(1));
      if (word.value) text += word.file ? " -r -F" : " -x";
      if (!word.choices.empty()) text += " -a " + fishQuoted(joined(word.choices, " "));
      text += " -d " + fishQuoted(word.says) + "\n";
    }
  }
  return text;
}

}  // namespace

std::string completionScript(const CLI::App& app, const std::string& shell) {
  std::vector<Command> commands;
  collect(app, {}, commands);
  return shell == "bash"  ? bashScript(commands)
         : shell == "zsh" ? zshScript(commands)
                          : fishScript(commands);
}

void addCompletionCommand(CLI::App& app, std::function<int()>& run) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("completion", "Print a script that completes commands and options");
  command->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->type_name("");
  command->footer(
      "For one shell: source <(shardproof completion bash). Installations have it already.");
  command->callback([&app, shell, &run] {
    run = [&app, shell] {
      writeStandardOutput(completionScript(app, *shell));
      return 0;
    };
  });
}

}  // namespace shardproof
