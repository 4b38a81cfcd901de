% Grade results with the frozen test set, in Octave 7 or MATLAB (where the file has to be unpacked):
%
%     octave --no-gui grade.m refgeo-vectors-1.json results.json [single]
%
% The results are {case: {value: number or rows}}. The folder's README.md describes both files, and what is wrong.
1;

function rows = matrix(value)  % of numbers, or of numbers in text, as jsondecode reads rows
  if ischar(value)
    rows = str2double(value);
  elseif iscell(value)
    rows = cellfun(@matrix, value, 'UniformOutput', false);
    rows = vertcat(rows{:});
  else
    rows = reshape(value.', [], 1);
  end
end

function grade(files)
  set = jsondecode(fileread(files{1}), 'makeValidName', false);
  results = jsondecode(fileread(files{2}), 'makeValidName', false);
  roundoff = 2^-53;
  if numel(files) > 2 && strcmp(files{3}, 'single')
    roundoff = 2^-24;
  end
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
      exact = matrix(expected.mid);
      got = matrix(results.(names{k}).(values{i}));
      largest = max(abs(exact));
      if largest == 0 largest = 1; end
      allowed = Inf;
      if ~isempty(expected.unit) allowed = 1000 * expected.unit * roundoff / 2^-53; end
      judged = numel(got) ~= numel(exact) || allowed <= 0.1 * largest;
      off = Inf;
      if numel(got) == numel(exact) && all(isfinite(got)) off = max(abs(got - exact)); end
      if judged rows.(label)(5) = min(rows.(label)(5), max(0, -log10(off / largest))); end
      verdict = 3;
      if judged verdict = 1 + (off > str2double(expected.rad) + allowed); end
      rows.(label)(verdict) += 1;
    end
  end
  printf('%-44s right wrong not judged missing digits\n', 'value');
  labels = sort(fieldnames(rows));
  wrong = {};
  right = 0;
  for k = 1:numel(labels)
    row = rows.(labels{k});
    if sum(row(1:3)) > 0 printf('%-44s %5d %5d %10d %7d %6.1f\n', labels{k}, row); end
    if row(2) > 0 wrong{end + 1} = labels{k}; end
    right += row(1);
  end
  if ~isempty(wrong)
    error('WRONG: %s', strjoin(wrong, ', '));
  end
  printf('All %d arrays that can be judged are right.\n', right);
end

grade(argv());
