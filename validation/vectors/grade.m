% Grade results with the frozen test set, unpacked by gunzip, in Octave 7 or later:
%
%     octave --no-gui grade.m refgeo-vectors-1.json results.json [single]
%
% The results are {case: {value: number or rows}}. The folder's README.md describes both files, and what is wrong.
1;

function row = flat(value)  % numbers, or numbers in text, row by row
  if ischar(value)
    row = str2double(value);
  elseif iscell(value)
    parts = cellfun(@flat, value, 'UniformOutput', false);
    row = vertcat(parts{:});
  elseif isnumeric(value) && ~isempty(value)
    row = reshape(value.', [], 1);
  else
    row = NaN;
  end
end

function judge_set(files)
  if numel(files) < 2 || numel(files) > 3 || (numel(files) == 3 && ~strcmp(files{3}, 'single'))
    error('usage: grade.m refgeo-vectors-1.json results.json [single]');
  end
  set = jsondecode(fileread(files{1}), 'makeValidName', false);
  results = jsondecode(fileread(files{2}), 'makeValidName', false);
  roundoff = 2^(-53 + 29 * (numel(files) == 3));
  names = fieldnames(results);
  for k = 1:numel(names)
    values = fieldnames(results.(names{k}));
    for i = 1:numel(values)
      if ~isfield(set.cases, names{k}) || ~isfield(set.cases.(names{k}).values, values{i})
        error('unknown: %s %s', names{k}, values{i});
      end
    end
  end
  rows = struct();
  first = struct();
  names = fieldnames(set.cases);
  for k = 1:numel(names)
    one = set.cases.(names{k});
    values = fieldnames(one.values);
    for i = 1:numel(values)
      expected = one.values.(values{i});
      if isfield(one, 'metric') which = one.metric; else which = one.network; end
      label = [one.kind ' ' regexprep(values{i}, '_[GH]$', '') ' ' which];
      if ~isfield(rows, label) rows.(label) = [0 0 0 0 16]; end  % right, wrong, not judged, missing, digits
      if ~isfield(results, names{k}) || ~isfield(results.(names{k}), values{i})
        rows.(label)(4) += 1;
        continue
      end
      exact = flat(expected.mid);
      got = flat(results.(names{k}).(values{i}));
      largest = max(abs(exact)) + all(exact == 0);
      allowed = Inf;
      if ~isempty(expected.unit) allowed = 1000 * expected.unit * roundoff / 2^-53; end
      if numel(got) ~= numel(exact)
        said = sprintf('expected %d numbers, got %d', numel(exact), numel(got));
        off = Inf;
      elseif allowed > 0.1 * largest
        rows.(label)(3) += 1;
        continue
      else
        if any(~isfinite(got)) off = Inf; else off = max(abs(got - exact)); end
        said = sprintf('off by %.2g, allowed are %.2g', off, allowed);
      end
      rows.(label)(5) = min(rows.(label)(5), max(0, -log10(off / largest)));
      wrong = off > str2double(expected.rad) + allowed || isinf(off);
      rows.(label)(1 + wrong) += 1;
      if wrong && ~isfield(first, label) first.(label) = sprintf('%s %s: %s', names{k}, values{i}, said); end
    end
  end
  printf('%-44s right wrong not judged missing digits\n', 'value');
  labels = sort(fieldnames(rows));
  right = 0;
  for k = 1:numel(labels)
    row = rows.(labels{k});
    digits = sprintf('%6.1f', row(5));
    if sum(row(1:2)) == 0 digits = '     -'; end
    if sum(row(1:3)) > 0 printf('%-44s %5d %5d %10d %7d %s\n', labels{k}, row(1:4), digits); end
    right += row(1);
  end
  wrong = sort(fieldnames(first));
  for k = 1:numel(wrong)
    printf('wrong: %s\n', first.(wrong{k}));
  end
  if ~isempty(wrong) error('WRONG: %s', strjoin(wrong.', ', ')); end
  if right == 0 error('No array could be judged.'); end
  printf('All %d judged arrays are right.\n', right);
end

judge_set(argv());
