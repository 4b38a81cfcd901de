% The five functions (and the Hessian) in Octave or MATLAB, from a folder made by: refgeo vectors write DIR --format json
%
%     octave --no-gui validation/backends/other_languages/solve.m DIR/inputs.json results.json
%     refgeo vectors grade DIR results.json
1;

function [c_G, c_H] = christoffel(metric, G, H, a_G, a_H, b_G, b_H)
  sums = @(x, y) x' * y + y' * x;
  if strcmp(metric, 'inv')
    c_G = 0.5 * (G * ((G' * G) \ sums(a_G, b_G)) - a_G * ((G' * G) \ sums(b_G, G)) - b_G * ((G' * G) \ sums(a_G, G)));
    c_H = 0.5 * (H * ((H' * H) \ sums(a_H, b_H)) - a_H * ((H' * H) \ sums(b_H, H)) - b_H * ((H' * H) \ sums(a_H, H)));
  else
    c_G = 0.5 * (a_G * sums(b_H, H) + b_G * sums(a_H, H) - G * sums(a_H, b_H)) / (H' * H);
    c_H = 0.5 * (a_H * sums(b_G, G) + b_H * sums(a_G, G) - H * sums(a_G, b_G)) / (G' * G);
  end
end

function [p_G, p_H] = horizontal_projection(metric, G, H, v_G, v_H)
  S = G' * G; T = H' * H;
  if strcmp(metric, 'inv')
    L = sylvester(S * T, S * T, S * H' * v_H - v_G' * G * T)';
  else
    L = 0.5 * ((v_H' * H) / T - S \ (G' * v_G));
  end
  p_G = v_G + G * L; p_H = v_H - H * L';
end

function [g_G, g_H] = riemannian_gradient(metric, G, H, e_G, e_H)
  if strcmp(metric, 'inv')
    g_G = e_G * (G' * G); g_H = e_H * (H' * H);
  else
    g_G = e_G / (H' * H); g_H = e_H / (G' * G);
  end
end

% Some points are ill-conditioned on purpose; the report says what that costs.
warning('off', 'Octave:nearly-singular-matrix');
warning('off', 'Octave:singular-matrix');
warning('off', 'MATLAB:nearlySingularMatrix');

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
in = jsondecode(fileread(files{1}));
out = struct();
for k = 1:numel(in.cases)
  c = in.cases{k};
  get = @(name) in.([c '__' name]);
  metric = get('metric'); G = get('G'); H = get('H'); t = get('t');
  S = G' * G; T = H' * H;

  if strcmp(metric, 'inv')
    out.([c '__inner_product']) = trace(S \ (get('a_G')' * get('b_G'))) + trace(T \ (get('a_H')' * get('b_H')));
  else
    out.([c '__inner_product']) = trace(T * (get('a_G')' * get('b_G'))) + trace(S * (get('a_H')' * get('b_H')));
  end

  [out.([c '__horizontal_projection_G']), out.([c '__horizontal_projection_H'])] = ...
    horizontal_projection(metric, G, H, get('v_G'), get('v_H'));
  [out.([c '__riemannian_gradient_G']), out.([c '__riemannian_gradient_H'])] = ...
    riemannian_gradient(metric, G, H, get('e_G'), get('e_H'));
  [out.([c '__christoffel_G']), out.([c '__christoffel_H'])] = ...
    christoffel(metric, G, H, get('a_G'), get('a_H'), get('b_G'), get('b_H'));

  [b_G, b_H] = christoffel(metric, G, H, get('v_G'), get('v_H'), get('v_G'), get('v_H'));
  out.([c '__geodesic_1_G']) = G + t * get('v_G');
  out.([c '__geodesic_1_H']) = H + t * get('v_H');
  out.([c '__geodesic_2_G']) = G + t * get('v_G') - t^2 / 2 * b_G;
  out.([c '__geodesic_2_H']) = H + t * get('v_H') - t^2 / 2 * b_H;

  e_G = get('hessian_e_G'); e_H = get('hessian_e_H'); v_G = get('hessian_v_G'); v_H = get('hessian_v_H');
  [g_G, g_H] = riemannian_gradient(metric, G, H, e_G, e_H);
  Sdot = v_G' * G + G' * v_G; Tdot = v_H' * H + H' * v_H;
  if strcmp(metric, 'inv')
    d_G = get('hessian_w_G') * S + e_G * Sdot; d_H = get('hessian_w_H') * T + e_H * Tdot;
  else
    d_G = (get('hessian_w_G') - g_G * Tdot) / T; d_H = (get('hessian_w_H') - g_H * Sdot) / S;
  end
  [c_G, c_H] = christoffel(metric, G, H, g_G, g_H, v_G, v_H);
  [out.([c '__riemannian_hessian_G']), out.([c '__riemannian_hessian_H'])] = ...
    horizontal_projection(metric, G, H, d_G + c_G, d_H + c_H);
end
write_json(files{2}, out);
