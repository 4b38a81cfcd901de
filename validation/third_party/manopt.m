% Manopt's two quotient geometries of fixed-rank matrices, from a folder made by: refgeo vectors write DIR --format json
%
%     octave --no-gui manopt.m MANOPT_FOLDER DIR/inputs.json results.json
1;

% Manopt's calls what only MATLAB has; Octave's own solver stands in for it.
function X = sylvester_nochecks(A, B, C)
  X = sylvester(A, B, C);
end

% 17 digits tell two doubles apart; jsonencode may write fewer.
function text = as_json(X)
  number = @(x) sprintf('%.17g', x);
  row = @(i) ['[' strjoin(arrayfun(number, X(i, :), 'UniformOutput', false), ', ') ']'];
  text = ['[' strjoin(arrayfun(row, 1:size(X, 1), 'UniformOutput', false), ', ') ']'];
end

function write_json(file, out)
  names = fieldnames(out);
  entry = @(name) sprintf('"%s": %s', name, as_json(out.(name)));
  stream = fopen(file, 'w');
  fprintf(stream, '{%s}\n', strjoin(cellfun(entry, names, 'UniformOutput', false)', ",\n"));
  fclose(stream);
end

files = argv();
addpath(genpath(files{1}));
warning('off', 'all');
in = jsondecode(fileread(files{2}));
out = struct();
for k = 1:numel(in.cases)
  c = in.cases{k};
  get = @(name) in.([c '__' name]);
  pair = @(name) struct('L', get([name '_G']), 'R', get([name '_H']));
  G = get('G'); H = get('H');
  if strcmp(get('metric'), 'inv')
    M = fixedrankfactory_2factors(rows(G), rows(H), columns(G));
  else
    M = fixedrankfactory_2factors_preconditioned(rows(G), rows(H), columns(G));
  end
  X = struct('L', G, 'R', H);
  if isfield(M, 'prepare'), X = M.prepare(X); end
  out.([c '__inner_product']) = M.inner(X, pair('a'), pair('b'));
  P = M.proj(X, pair('v'));
  out.([c '__horizontal_projection_G']) = P.L; out.([c '__horizontal_projection_H']) = P.R;
  g = M.egrad2rgrad(X, pair('e'));
  out.([c '__riemannian_gradient_G']) = g.L; out.([c '__riemannian_gradient_H']) = g.R;
  h = M.ehess2rhess(X, pair('hessian_e'), pair('hessian_w'), pair('hessian_v'));
  out.([c '__riemannian_hessian_G']) = h.L; out.([c '__riemannian_hessian_H']) = h.R;
end
write_json(files{3}, out);
