// A quiet line that moves with the sound. In: an analyser, or null for none. Out: a drawing.

const canvas = document.getElementById("wave");
const pen = canvas.getContext("2d");
const samples = new Float32Array(1024);
let isDrawing = false;

/** Draws for as long as `analyserNow()` gives an AnalyserNode; a person who wants no motion gets none. */
export function drawWave(analyserNow) {
  if (isDrawing || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const draw = () => {
    const analyser = analyserNow();
    isDrawing = analyser !== null;
    canvas.classList.toggle("live", isDrawing);
    if (!isDrawing) return;
    analyser.getFloatTimeDomainData(samples);
    stroke();
    requestAnimationFrame(draw);
  };
  draw();
}

function stroke() {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth * ratio, canvas.clientHeight * ratio];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  pen.clearRect(0, 0, width, height);
  pen.lineWidth = 1.5 * ratio;
  pen.strokeStyle = getComputedStyle(canvas).getPropertyValue("--accent");
  pen.beginPath();
  for (let i = 0; i < samples.length; i += 4) {
    const edge = Math.sin((Math.PI * i) / samples.length); // to rest at both ends
    pen.lineTo((i / samples.length) * width, height / 2 - samples[i] * edge * height * 0.9);
  }
  pen.stroke();
}
